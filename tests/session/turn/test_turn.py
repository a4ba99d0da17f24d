"""The work on one letter: what is stored before what, and how a turn goes on after a crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from session.errors import BadAnswer, ModelAway, TurnTimeout
from session.models.model import Answer, OnDelta, Prompt, Usage
from session.store.state import workspace_state
from session.tools import Toolbox, ToolPlace
from session.turn.turn import INTERRUPTED, STOPPED, StopSwitch, TurnLimits
from tests.session.turn_place import CALLS, Counter, Model, TurnRig, call, roles, turn_rig
from tests.support.guarantee import guarantee
from tests.support.until import until

RESULT = {"role": "tool", "content": "counted 1", "tool_call_id": "c1", "name": "count"}


async def test_a_turn_stores_question_and_answer_with_their_id(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, Answer("hi", usage=Usage(10, 2, 0.5))) as rig:
        reply = await rig.run()

        user, final = await rig.lines()
        assert reply.text == "hi"
        assert (user["role"], user["content"], user["message_id"]) == ("user", "hello", "m1")
        assert (final["content"], final["final"], final["message_id"]) == ("hi", True, "m1")
        assert final["usage"] == {"prompt": 10, "completion": 2, "cost_usd": 0.5}


async def test_an_exchange_holds_its_times_and_the_tools_that_were_used(tmp_path: Path) -> None:
    """Each line the time at which it was written, the answer the names of the tools."""
    async with turn_rig(tmp_path, call("1"), Answer("done")) as rig:
        before = rig.now()
        await rig.run("count to 1")
        after = rig.now()

        lines = await rig.lines()
        times = [datetime.fromisoformat(str(line["timestamp"])) for line in lines]
        assert (lines[0]["content"], lines[-1]["content"]) == ("count to 1", "done")
        assert [before, *times, after] == sorted([before, *times, after])
        assert lines[-1]["tools_used"] == ["count"]


async def test_a_quick_answer_goes_in_one_append_with_its_question(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, Answer("hi")) as rig:
        await rig.run()

        assert rig.model.seen_on_disk == [[]]


async def test_a_question_is_stored_while_a_slow_model_still_thinks(tmp_path: Path) -> None:
    """The user line is on disk before a slow answer, so that a crash shows what was asked."""
    stored = asyncio.Event()

    async def slow() -> Answer:
        await until(lambda: TurnRig.on_disk(tmp_path) == ["user"])
        stored.set()
        return Answer("late")

    async with turn_rig(tmp_path, slow) as rig:
        await rig.run()

        assert stored.is_set()
        assert roles(await rig.lines()) == ["user", "assistant"]


@guarantee("once", "A tool call is stored before the tool runs, and its result before the next request.")
async def test_the_call_is_stored_before_the_tool_and_the_result_before_the_next_request(
    tmp_path: Path,
) -> None:
    async with turn_rig(tmp_path, call("1"), Answer("done")) as rig:
        await rig.run()

        assert rig.tool.seen_on_disk == [["user", "assistant"]]
        assert rig.model.seen_on_disk[1] == ["user", "assistant", "tool"]
        lines = await rig.lines()
        assert roles(lines) == ["user", "assistant", "tool", "assistant"]
        assert lines[2]["content"] == "counted 1"
        assert lines[3]["tools_used"] == ["count"]
        assert {line["message_id"] for line in lines} == {"m1"}


@guarantee("once", "A tool that is not repeatable acts at most once.")
@pytest.mark.parametrize(
    ("repeatable", "result", "calls"), [(True, "counted 1", ["1"]), (False, INTERRUPTED, [])]
)
async def test_after_a_crash_only_a_repeatable_tool_runs_again(
    tmp_path: Path, repeatable: bool, result: str, calls: list[str]
) -> None:
    async with turn_rig(tmp_path, Answer("done"), repeatable=repeatable) as rig:
        await rig.stored({"role": "user", "content": "hello"}, CALLS)

        reply = await rig.run()

        lines = await rig.lines()
        assert reply.text == "done"
        assert rig.tool.calls == calls
        assert roles(lines) == ["user", "assistant", "tool", "assistant"]
        assert lines[2]["content"] == result
        assert bool(lines[2].get("is_error")) == (not repeatable)


@pytest.mark.parametrize("stored", [[], [CALLS, RESULT]], ids=["its question", "all results"])
async def test_what_a_turn_stored_before_a_crash_is_not_done_or_stored_again(
    tmp_path: Path, stored: list[dict[str, Any]]
) -> None:
    async with turn_rig(tmp_path, Answer("done"), repeatable=False) as rig:
        await rig.stored({"role": "user", "content": "hello"}, *stored)

        await rig.run()

        assert rig.tool.calls == []
        assert roles(await rig.lines()) == ["user", *roles(stored), "assistant"]
        assert [m["role"] for m in rig.model.prompts[0].messages] == ["user", *roles(stored)]


async def test_a_half_done_turn_behind_which_others_ran_becomes_a_new_exchange(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, Answer("again")) as rig:
        await rig.stored({"role": "user", "content": "hello"})
        await rig.stored(
            {"role": "user", "content": "other", "message_id": "m2"},
            {"role": "assistant", "content": "ok", "message_id": "m2", "final": True},
        )

        await rig.run()

        ids = [line["message_id"] for line in await rig.lines()]
        assert ids == ["m1", "m2", "m2", "m1", "m1"]


async def test_tools_without_end_are_a_bad_answer_and_leave_a_legal_transcript(tmp_path: Path) -> None:
    answers = [call(str(n), id=f"c{n}") for n in range(5)]
    async with turn_rig(tmp_path, *answers, max_tool_rounds=2) as rig:
        with pytest.raises(BadAnswer):
            await rig.run()

        assert roles(await rig.lines()) == ["user", "assistant", "tool", "assistant", "tool"]


async def test_the_rounds_before_a_crash_count(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, call("2", id="c2"), max_tool_rounds=1) as rig:
        await rig.stored({"role": "user", "content": "hello"}, CALLS)

        with pytest.raises(BadAnswer):
            await rig.run()


async def test_an_answer_of_blanks_is_a_bad_answer(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, Answer(" \n")) as rig:
        with pytest.raises(BadAnswer):
            await rig.run()


async def test_an_outage_leaves_nothing_of_the_answer_and_the_next_try_answers(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, ModelAway("503", cause="unreachable"), Answer("back")) as rig:
        with pytest.raises(ModelAway):
            await rig.run()

        await rig.run()

        assert roles(await rig.lines()) == ["user", "assistant"]


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


@pytest.mark.parametrize("why", ["out of time", "stopped", "interrupted"])
async def test_an_answer_that_is_stored_as_its_turn_ends_is_the_reply(tmp_path: Path, why: str) -> None:
    """What the next request holds as said must not be told to the chat as a turn that was given up.

    It may end by its time, a stop, or the next message, while its answer is stored.
    """
    disk, stop = threading.Event(), StopSwitch()

    async def answer() -> Answer:
        # What is stored from now on comes behind this.
        workspace_state(tmp_path / "state").at = lambda _: disk.wait()
        if why != "out of time":
            pull = partial(stop.pull, interrupted=why == "interrupted")
            asyncio.get_running_loop().call_later(0.1, pull)
        return Answer("just in time")

    # Long enough for a busy machine to come to the answer.
    limits = {"turn_timeout_s": 0.5} if why == "out of time" else {}
    async with turn_rig(tmp_path, answer, **limits) as rig:
        turn = asyncio.create_task(rig.run(stop=stop))
        await until(lambda: turn.cancelling() or turn.done())
        disk.set()
        reply = await turn

        assert (reply.text, reply.silent, reply.seq) == ("just in time", False, 1)
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
