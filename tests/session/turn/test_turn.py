"""The work on one letter: what is stored before what, and how a turn goes on after a crash."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from session.errors import BadAnswer, ModelAway
from session.models.model import Answer, Usage
from session.turn.turn import INTERRUPTED
from tests.session.turn_place import CALLS, TurnRig, call, roles, turn_rig
from tests.support.guarantee import guarantee
from tests.support.until import until


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


async def test_a_turn_that_stored_its_question_asks_without_storing_it_again(tmp_path: Path) -> None:
    async with turn_rig(tmp_path, Answer("done")) as rig:
        await rig.stored({"role": "user", "content": "hello"})

        await rig.run()

        assert roles(await rig.lines()) == ["user", "assistant"]
        assert [m["role"] for m in rig.model.prompts[0].messages] == ["user"]


async def test_a_turn_with_all_results_stored_only_asks_again(tmp_path: Path) -> None:
    result = {"role": "tool", "content": "counted 1", "tool_call_id": "c1", "name": "count"}
    async with turn_rig(tmp_path, Answer("done"), repeatable=False) as rig:
        await rig.stored({"role": "user", "content": "hello"}, CALLS, result)

        await rig.run()

        assert rig.tool.calls == []
        assert roles(await rig.lines()) == ["user", "assistant", "tool", "assistant"]


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
