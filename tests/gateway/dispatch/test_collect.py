"""Mode ``collect``: messages that wait together are answered together, each known for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from channels.tables import QueueMode
from gateway.dispatch.batching import QueueRules
from gateway.dispatch.worker import DispatchRules
from session.errors import ModelRefused
from session.models.model import Answer, Prompt, ToolCall
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.gateway.worker_rig import Rig, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

COLLECT = QueueRules("collect", collect_s=0.0)
SLOWLY = QueueRules("collect", collect_s=0.1)


async def collected(r: Rig, *texts: str) -> None:
    """Let messages wait behind one that runs, then let it end."""
    await r.line_up(("first", "m0"), *((text, f"m{number}") for number, text in enumerate(texts, 1)))


async def test_messages_that_come_shortly_after_one_another_are_collected(tmp_path: Path) -> None:
    async with rig(tmp_path, "all", queue=QueueRules("collect", collect_s=1.0)) as r:
        for number in range(5):
            await r.put(f"line {number}", f"m{number}")

        assert await r.texts(1) == ["all"]
        await r.settled()
        assert len(r.model.prompts) == 1
        assert (await r.lines())[-1]["answers"] == [f"m{number}" for number in range(5)]


async def test_who_never_pauses_is_answered_all_the_same(tmp_path: Path) -> None:
    """The wait for more is bounded, however many come."""
    async with rig(tmp_path, queue=SLOWLY) as r:
        number = 0
        while not r.unread:
            await r.put("more", f"m{number}")
            number += 1
            await until(lambda: True)

        assert r.unread


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("/help", {}),
        ("press", {"kind": "action"}),
        ("hello", {"sender": Sender(id="2")}),
        ("hello", {"answer_to": "foreign:bob"}),
        ("tick", {"source": "cron"}),
    ],
)
async def test_a_collection_ends_before_what_is_answered_for_itself(
    tmp_path: Path, text: str, fields: dict[str, Any]
) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        await r.line_up(("first", "m0"), ("1", "m1"), ("2", "m2"), (text, "x", fields), ("3", "m3"))

        replies = await r.ids(4)
        await r.settled()

        assert replies == ["m0#reply", "m1#reply", "x#reply", "m3#reply"]
        served = [line["answers"] for line in await r.lines() if "answers" in line]
        assert served == [["m1", "m2"]]


async def test_an_edit_changes_its_message_and_ends_a_collection(tmp_path: Path) -> None:
    async with rig(tmp_path, queue=COLLECT) as r:
        edit = ("two", "e2", {"platform_id": "2", "kind": "edit"})
        mistyped = ("tow", "m2", {"platform_id": "2"})
        await r.line_up(("first", "m0"), ("one", "m1"), mistyped, edit, ("three", "m3"))
        await r.replies(3)
        await r.settled()

        said = [(line["role"], line["content"]) for line in await r.lines() if line["role"] != "assistant"]
        assert said == [("user", text) for text in ("first", "one", "two", "three")]


@guarantee("once", "Each of several messages with one answer is recognised when it is redelivered.")
async def test_a_message_that_comes_again_is_known_by_the_answer_that_names_it(tmp_path: Path) -> None:
    """Also after its session has ended."""
    async with rig(tmp_path, "zero", "both", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(2)
        await r.settled()
        for id_ in ("m1", "m2"):
            await r.put(id_, id_)
        await r.settled()

        # The one that has a reply gets it again, the other one nothing.
        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m1#reply", "both")]
        assert r.unread == 0
        await r.say("/new", "n1")
        await r.put("two", "m2")
        await r.settled()

        assert (r.unread, len(r.model.prompts)) == (0, 2)


async def test_one_message_that_is_refused_takes_no_other_with_it(tmp_path: Path) -> None:
    """The turn of all failed for good: each is asked alone, and only the poison is parked."""

    def answer(prompt: Prompt) -> str:
        running = [str(message["content"]) for message in prompt.messages][-3:]
        if "poison" in running[-1] or "poison" in running:
            raise ModelRefused("no")
        return f"about {running[-1]}"

    steps = ["zero", *[answer] * 4]
    async with rig(tmp_path, *steps, queue=COLLECT) as r:
        await collected(r, "one", "poison")
        replies = await r.replies(3)
        parked = await r.parked()
        await r.settled()

        assert [(reply.id, reply.kind) for reply in replies] == [
            ("m0#reply", "reply"),
            ("m1#reply", "reply"),
            ("m2#notice.refused", "notice"),
        ]
        assert [letter.id for letter in parked] == ["m2"]


async def test_a_stop_ends_them_all(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "a long answer", queue=COLLECT) as r:
        await collected(r, "one", "two")
        await r.replies(1)
        r.model.release.clear()
        await until(lambda: len(r.model.prompts) == 2)
        await r.put("/stop", "s1")
        r.model.release.set()

        assert await r.texts(1) == ["Stopped."]
        await r.settled()
        assert r.unread == 0
        closing = (await r.lines())[-1]
        assert (closing["stopped"], closing["answers"]) == (True, ["m1", "m2"])


@pytest.mark.parametrize(
    ("mode", "said"), [("followup", "one after the other"), ("collect", "together"), ("steer", "together")]
)
async def test_a_chat_that_piles_up_is_told_how_it_is_answered(
    tmp_path: Path, mode: QueueMode, said: str
) -> None:
    async with rig(tmp_path, pending_per_chat=3, queue=QueueRules(mode, collect_s=0.0)) as r:
        await r.begin("first", "m0")
        for number in range(1, 6):
            await r.put(str(number), f"m{number}")

        (notice,) = await r.replies(1)
        r.model.release.set()
        await r.settled()

    assert notice.id.endswith("#notice.busy")
    assert said in notice.text


CALL = Answer("looking", [ToolCall("c1", "look", "{}")])
AGAIN = Answer("looking", [ToolCall("c2", "look", "{}")])


@asynccontextmanager
async def steered(folder: Path, *steps: Any) -> AsyncIterator[Rig]:
    built = Rig(folder, Script(steps), DispatchRules(queue=QueueRules("steer")))
    built.limits = TurnLimits(max_tool_rounds=5)
    async with built.open():
        yield built


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


async def test_messages_that_wait_as_a_turn_begins_enter_it(tmp_path: Path) -> None:
    """A finished answer is not held back: what comes while the model writes it is the next turn's."""
    async with steered(tmp_path, "one", "rest") as r:
        await r.line_up(("1", "m1"), ("2", "m2"), ("3", "m3"))

        assert await r.texts(2) == ["one", "rest"]
        await r.settled()
        assert (await r.lines())[-1]["answers"] == ["m2", "m3"]


async def test_commands_and_other_people_wait_for_their_own_turn(tmp_path: Path) -> None:
    async with steered(tmp_path, CALL, "one", "two") as r:
        await r.line_up(("1", "m1"), ("2", "m2", {"sender": Sender(id="2")}), ("3", "m3"))

        assert await r.ids(3) == ["m1#reply", "m2#reply", "m3#reply"]
