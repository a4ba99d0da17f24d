"""Mode ``interrupt``: a new message stops the turn that runs, and one answer serves both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Sender
from gateway.turns.collect import QueueRules
from session.errors import ModelAway
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, Rig, rig

INTERRUPT = QueueRules("interrupt")


async def until_asked(r: Rig, times: int) -> None:
    await until(lambda: len(r.model.prompts) >= times)


async def test_a_new_message_stops_the_running_turn_and_is_answered_with_it(tmp_path: Path) -> None:
    """The stopped turn closes with what it had; the next answer names both, and is the only reply."""
    async with rig(tmp_path, "a long answer", "both", queue=INTERRUPT) as r:
        r.read_along()
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await until_asked(r, 2)
        r.model.release.set()

        assert [(reply.id, reply.text) for reply in await r.replies(1)] == [("m2#reply", "both")]
        await r.settled()
        assert r.unread == 0
        asked, closing, question, answer = await r.lines()
        assert (asked["content"], question["content"]) == ("one", "two")
        assert (closing["stopped"], closing["final"], closing["interrupted"]) == (True, True, True)
        assert closing["content"] == "a long"
        assert (answer["message_id"], answer["answers"]) == ("m2", ["m1", "m2"])
        assert [message["content"] for message in r.model.prompts[1].messages] == ["one", "a long", "two"]


async def test_messages_that_interrupt_one_another_are_all_named(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", "another one", "all", queue=INTERRUPT) as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await until_asked(r, 2)
        await r.put("three", "m3")
        await until_asked(r, 3)
        r.model.release.set()

        assert await r.texts(1) == ["all"]
        await r.settled()
        assert r.unread == 0
        assert (await r.lines())[-1]["answers"] == ["m1", "m2", "m3"]


async def test_one_that_comes_again_is_known(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", "both", queue=INTERRUPT) as r:
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await until_asked(r, 2)
        r.model.release.set()
        await r.replies(1)
        await r.put("one", "m1")
        await r.settled()

        assert (r.unread, len(r.model.prompts)) == (0, 2)


async def test_one_that_waits_for_a_model_that_is_away_is_answered_with_the_next(tmp_path: Path) -> None:
    away = ModelAway("429", cause="rate_limit", after_s=60)
    async with rig(tmp_path, away, "both", queue=INTERRUPT) as r:
        await r.put("one", "m1")
        await r.replies(1)
        await until(lambda: r.worker.lanes.get(ADA).nudge is not None)
        await r.put("two", "m2")

        assert await r.texts(1) == ["both"]
        assert (await r.lines())[-1]["answers"] == ["m1", "m2"]


@pytest.mark.parametrize(
    ("text", "fields"),
    [("/help", {}), ("hello", {"sender": Sender(id="2")}), ("hello", {"kind": "action"})],
)
async def test_what_is_answered_for_itself_interrupts_nothing(
    tmp_path: Path, text: str, fields: dict[str, Any]
) -> None:
    async with rig(tmp_path, "a long answer", queue=INTERRUPT) as r:
        await r.begin("one", "m1")
        await r.put(text, "x", **fields)
        await r.until_in_lane(2)
        r.model.release.set()

        assert [reply.id for reply in await r.replies(2)] == ["m1#reply", "x#reply"]
        assert (await r.lines())[1]["content"] == "a long answer"


async def test_a_message_does_not_interrupt_itself(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", queue=INTERRUPT) as r:
        await r.begin("one", "m1")
        await r.put("one", "m1")
        r.model.release.set()

        assert (await r.texts(1))[0] == "a long answer"


async def test_the_echo_repeats_both(tmp_path: Path) -> None:
    async with rig(tmp_path, "a long answer", queue=INTERRUPT) as r:
        r.model.plain = True
        await r.begin("one", "m1")
        await r.put("two", "m2")
        await until_asked(r, 2)
        r.model.release.set()

        assert await r.texts(1) == ["script: one\n\ntwo"]
