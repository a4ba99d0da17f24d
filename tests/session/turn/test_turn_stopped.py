"""A turn that is stopped, cancelled or out of time: what of it is stored, and what its chat is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from session.errors import TurnTimeout
from session.models.model import Answer, OnDelta, Prompt
from session.tools import Toolbox, ToolPlace
from session.turn.turn import INTERRUPTED, STOPPED, StopSwitch, TurnLimits
from tests.session.turn_place import Counter, Model, TurnRig, call, roles, turn_rig
from tests.support.until import until


async def test_a_stopped_turn_keeps_the_text_so_far_and_says_so(tmp_path: Path) -> None:
    stop = StopSwitch()

    class Talker(Model):
        async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
            assert on_delta is not None
            on_delta("half an ")
            stop.pull()
            await asyncio.Event().wait()
            raise AssertionError

    async with turn_rig(tmp_path, streams=True) as rig:
        rig.turns.model = Talker()

        reply = await rig.run(stop=stop)

        user, closing = await rig.lines()
        assert reply.silent
        assert user["content"] == "hello"
        assert (closing["content"], closing["stopped"], closing["final"]) == ("half an ", True, True)


async def test_a_turn_stopped_among_its_tools_leaves_no_call_without_a_result(tmp_path: Path) -> None:
    """The one that was begun may come to its end in its thread; the one behind it was not begun."""
    stop = StopSwitch()
    both = replace(call("1"), tool_calls=[*call("1").tool_calls, *call("2", id="c2").tool_calls])

    class Slow(Counter):
        async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
            stop.pull()
            await asyncio.Event().wait()
            raise AssertionError

    async with turn_rig(tmp_path, both) as rig:
        rig.turns.toolbox = Toolbox([Slow(repeatable=True)])

        await rig.run(stop=stop)

        lines = await rig.lines()
        assert roles(lines) == ["user", "assistant", "tool", "tool", "assistant"]
        assert [line["content"] for line in lines[2:4]] == [INTERRUPTED, STOPPED]
        assert all(line["is_error"] for line in lines[2:4])
        assert lines[4]["stopped"]


async def test_a_cancelled_turn_is_no_stopped_one(tmp_path: Path) -> None:
    """A drain cancels; the turn writes nothing then, and goes on with its next delivery."""
    begun = asyncio.Event()

    async def hang() -> Answer:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with turn_rig(tmp_path, hang, Answer("later")) as rig:
        task = asyncio.ensure_future(rig.run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert all(not line.get("final") for line in await rig.lines())
        assert (await rig.run()).text == "later"


class Cold(Model):
    """Loads what it needs until it is let."""

    def __init__(self, *steps: Answer) -> None:
        super().__init__(*steps)
        self.loading = asyncio.Event()
        self.loaded = asyncio.Event()

    async def warm(self) -> None:
        self.loading.set()
        await self.loaded.wait()


async def test_an_answer_that_is_stored_as_the_time_runs_out_is_the_reply(tmp_path: Path) -> None:
    """What the next request holds as said must not be told to the chat as a turn that was given up."""
    disk = threading.Event()

    async def answer() -> Answer:
        # What is stored from now on comes behind this.
        rig.store.beside(disk.wait)
        return Answer("just in time")

    # Long enough for a busy machine to come to the answer.
    async with turn_rig(tmp_path, answer, turn_timeout_s=0.5) as rig:
        turn = asyncio.create_task(rig.run())
        await until(lambda: turn.cancelling() or turn.done())
        disk.set()
        reply = await turn

        assert (reply.text, reply.seq) == ("just in time", 1)
        assert (await rig.lines())[-1]["final"]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_an_answer_that_is_stored_as_its_turn_is_stopped_is_the_reply(
    tmp_path: Path, interrupted: bool
) -> None:
    """What stands as said must be told, also where a stop, or the next message, comes while it is stored."""
    disk, stop = threading.Event(), StopSwitch()

    async def answer() -> Answer:
        rig.store.beside(disk.wait)
        asyncio.get_running_loop().call_later(0.1, partial(stop.pull, interrupted=interrupted))
        return Answer("already said")

    async with turn_rig(tmp_path, answer) as rig:
        turn = asyncio.create_task(rig.run(stop=stop))
        await until(lambda: turn.cancelling() or turn.done())
        disk.set()
        reply = await turn

        assert (reply.text, reply.silent, reply.seq) == ("already said", False, 1)
        assert (await rig.lines())[-1]["final"]


async def test_the_time_of_a_turn_counts_from_when_the_model_can_be_asked(tmp_path: Path) -> None:
    """A first letter is not given up for the seconds in which the model's library is imported."""
    model = Cold(Answer("there"))
    rig = TurnRig(tmp_path, model, Counter(repeatable=True), turn_timeout_s=0.1)
    turn = asyncio.create_task(rig.run())
    async with asyncio.timeout(30):
        await model.loading.wait()

    # A time that counted already is over now.
    await asyncio.sleep(0.4)
    rig.turns.limits = TurnLimits()
    model.loaded.set()
    reply = await turn

    assert reply.text == "there"
    await rig.store.aclose()


async def test_a_turn_can_be_stopped_while_the_model_is_loaded(tmp_path: Path) -> None:
    """The person does not wait for it; the question is kept, and the model is not asked."""
    model, stop = Cold(), StopSwitch()
    rig = TurnRig(tmp_path, model, Counter(repeatable=True))
    turn = asyncio.create_task(rig.run(stop=stop))
    async with asyncio.timeout(30):
        await model.loading.wait()

    stop.pull()
    reply = await turn

    assert (reply.silent, reply.reason, model.prompts) == (True, "stopped", [])
    assert [line["content"] for line in await rig.lines()] == ["hello", ""]
    await rig.store.aclose()


async def test_a_turn_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def hang() -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async with turn_rig(tmp_path, hang, turn_timeout_s=0.05) as rig:
        with pytest.raises(TurnTimeout):
            await rig.run()
