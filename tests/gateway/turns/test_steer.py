"""Mode ``steer``: messages that wait enter the running turn before its next request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.message import Sender
from gateway.turns.collect import QueueRules
from gateway.turns.letter_rules import LetterRules
from session.models.model import Answer, ToolCall
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.gateway.waits import until
from tests.gateway.worker_rig import Rig

CALL = Answer("looking", [ToolCall("c1", "look", "{}")])
AGAIN = Answer("looking", [ToolCall("c2", "look", "{}")])


@asynccontextmanager
async def steered(folder: Path, *steps: Any) -> AsyncIterator[Rig]:
    built = Rig(folder, Script(steps), LetterRules(queue=QueueRules("steer")))
    built.limits = TurnLimits(max_tool_rounds=5)
    async with built.open():
        yield built


def roles(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(line["role"], line["message_id"]) for line in lines]


async def test_a_message_that_waits_enters_the_turn_behind_its_tools(tmp_path: Path) -> None:
    """It is stored between the results and the next request, which sees it; one answer names both."""
    async with steered(tmp_path, CALL, "both") as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.release.set()

        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m1#reply", "both")]
        await r.settled()
        assert r.unread == 0
        lines = await r.lines()
        assert roles(lines) == [
            ("user", "m1"),
            ("assistant", "m1"),
            ("tool", "m1"),
            ("user", "m2"),
            ("assistant", "m1"),
        ]
        assert (lines[3]["part_of"], lines[4]["answers"]) == ("m1", ["m1", "m2"])
        assert [message["role"] for message in r.model.prompts[1].messages] == [
            "user",
            "assistant",
            "tool",
            "user",
        ]


async def test_messages_enter_at_each_boundary(tmp_path: Path) -> None:
    async with steered(tmp_path, CALL, AGAIN, "all") as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.held.clear()
        r.model.release.set()
        r.model.release.clear()
        await asyncio.wait_for(r.model.held.wait(), 20)
        await r.put("three", "m3")
        await r.until_in_lane(3)
        r.model.release.set()

        assert await r.texts(1) == ["all"]
        await r.settled()
        assert (await r.lines())[-1]["answers"] == ["m1", "m2", "m3"]


async def test_a_finished_answer_is_not_held_back(tmp_path: Path) -> None:
    """What comes while the model writes its answer is the next turn's."""
    async with steered(tmp_path, "one", "two") as r:
        await r.begin("1", "m1")
        await r.put("2", "m2")
        await r.until_in_lane(2)
        r.model.release.set()

        assert await r.texts(2) == ["one", "two"]


async def test_messages_that_wait_as_a_turn_begins_enter_it(tmp_path: Path) -> None:
    async with steered(tmp_path, "one", "rest") as r:
        await r.begin("1", "m1")
        await r.put("2", "m2")
        await r.put("3", "m3")
        await r.until_in_lane(3)
        r.model.release.set()

        assert await r.texts(2) == ["one", "rest"]
        await r.settled()
        assert (await r.lines())[-1]["answers"] == ["m2", "m3"]


async def test_commands_and_other_people_wait_for_their_own_turn(tmp_path: Path) -> None:
    async with steered(tmp_path, CALL, "one", "two") as r:
        await r.begin("1", "m1")
        await r.put("2", "m2", sender=Sender(id="2"))
        await r.put("3", "m3")
        await r.until_in_lane(3)
        r.model.release.set()

        assert [reply.id for reply in await r.replies(3)] == ["m1#reply", "m2#reply", "m3#reply"]


async def test_undo_takes_back_the_whole_turn(tmp_path: Path) -> None:
    async with steered(tmp_path, CALL, "both", "again") as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.release.set()
        await r.replies(1)
        await r.put("/retry", "r1")

        assert await r.texts(1) == ["again"]
        assert [message["content"] for message in r.model.prompts[-1].messages] == ["one\n\ntwo"]


async def test_messages_that_come_again_are_known(tmp_path: Path) -> None:
    async with steered(tmp_path, CALL, "both") as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await r.until_in_lane(2)
        r.model.release.set()
        await r.replies(1)
        await r.settled()
        await r.put("two", "m2")
        await r.settled()

        assert (r.unread, len(r.model.prompts)) == (0, 2)
        await until(lambda: not list(r.worker.lanes))
