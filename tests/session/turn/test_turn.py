"""The work on one letter: what is stored before what, and how a turn goes on after a crash."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.errors import BadAnswer, ModelAway, TurnTimeout
from session.models.model import Answer, OnDelta, Prompt, ToolCall, ToolSpec, Usage
from session.store.store import Session, Store
from session.tools import Toolbox, ToolPlace
from session.transcript.key import SessionKey
from session.turn.turn import INTERRUPTED, STOPPED, Reply, Request, StopSwitch, TurnContext, TurnLimits, Turns

ADA = SessionKey("cli:ada")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Model:
    """Answers what the test lays out; each step is an answer, an error, or something to await first."""

    name = "scripted"
    plain = False

    def __init__(self, *steps: Answer | Exception | Callable[[], Any]) -> None:
        self.steps = list(steps)
        self.prompts: list[Prompt] = []
        self.seen_on_disk: list[list[str]] = []
        self.look: Callable[[], list[str]] = list

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.prompts.append(prompt)
        self.seen_on_disk.append(self.look())
        step = self.steps.pop(0)
        if callable(step):
            step = await step()
        if isinstance(step, Exception):
            raise step
        if on_delta is not None and step.text:
            on_delta(step.text)
        return step


class Counter:
    """A tool that remembers its calls."""

    def __init__(self, *, repeatable: bool) -> None:
        self.repeatable = repeatable
        self.calls: list[str] = []
        self.look: Callable[[], list[str]] = list
        self.seen_on_disk: list[list[str]] = []

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("count", "counts", {"type": "object", "properties": {"n": {"type": "string"}}})

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        self.seen_on_disk.append(self.look())
        self.calls.append(str(arguments.get("n")))
        return f"counted {arguments.get('n')}"


def call(n: str, id: str = "c1") -> Answer:
    return Answer("", tool_calls=[ToolCall(id, "count", f'{{"n": "{n}"}}')], finish="tool_calls")


class House:
    def __init__(self, folder: Path, model: Model, tool: Counter, **limits: Any) -> None:
        self.store = Store(folder, zone=UTC)
        self.model = model
        self.tool = tool
        self._seconds = itertools.count()
        self.turns = Turns(
            model=model,
            toolbox=Toolbox([tool]),
            limits=TurnLimits(**limits),
            zone=UTC,
            clock=self.now,
            turn_context=self._surroundings,
        )
        model.look = tool.look = lambda: self.on_disk(folder)

    def now(self) -> datetime:
        """A second later at each look."""
        return START + timedelta(seconds=next(self._seconds))

    @staticmethod
    def on_disk(folder: Path) -> list[str]:
        path = folder / "sessions" / "cli_ada.jsonl"
        return [line["role"] for line in lines_in(path)] if path.exists() else []

    async def _surroundings(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.store.layout.sessions.parent / "files", tools=("count",))

    async def run(self, text: str = "hello", id: str = "m1", stop: StopSwitch | None = None) -> Reply:
        async with self.store.open(ADA) as session:
            return await self.turns.run(
                session, Request(id=id, key=ADA, text=text), stop=stop or StopSwitch()
            )

    async def lines(self) -> list[dict[str, Any]]:
        return (await self.store.look(ADA)).lines()

    async def stored(self, *lines: dict[str, Any]) -> None:
        async with self.store.open(ADA) as session:
            await session.append([{"message_id": "m1", "content": "", **line} for line in lines])


def lines_in(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in path.read_bytes().split(b"\n")[1:] if line]


@asynccontextmanager
async def house(folder: Path, *steps: Any, repeatable: bool = True, **limits: Any) -> AsyncIterator[House]:
    built = House(folder, Model(*steps), Counter(repeatable=repeatable), **limits)
    yield built
    await built.store.aclose()


def roles(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(line["role"]) for line in lines]


CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"n": "1"}'}}
    ],
}


async def test_a_turn_stores_question_and_answer_with_their_id(tmp_path: Path) -> None:
    async with house(tmp_path, Answer("hi", usage=Usage(10, 2, 0.5))) as h:
        reply = await h.run()

        user, final = await h.lines()
        assert reply.text == "hi"
        assert (user["role"], user["content"], user["message_id"]) == ("user", "hello", "m1")
        assert (final["content"], final["final"], final["message_id"]) == ("hi", True, "m1")
        assert final["usage"] == {"prompt": 10, "completion": 2, "cost_usd": 0.5}


async def test_an_exchange_holds_its_times_and_the_tools_that_were_used(tmp_path: Path) -> None:
    """Each line the time at which it was written, the answer the names of the tools."""
    async with house(tmp_path, call("1"), Answer("done")) as h:
        before = h.now()
        await h.run("count to 1")
        after = h.now()

        lines = await h.lines()
        times = [datetime.fromisoformat(str(line["timestamp"])) for line in lines]
        assert (lines[0]["content"], lines[-1]["content"]) == ("count to 1", "done")
        assert [before, *times, after] == sorted([before, *times, after])
        assert lines[-1]["tools_used"] == ["count"]


async def test_a_quick_answer_goes_in_one_append_with_its_question(tmp_path: Path) -> None:
    async with house(tmp_path, Answer("hi")) as h:
        await h.run()

        assert h.model.seen_on_disk == [[]]


async def test_a_question_is_stored_while_a_slow_model_still_thinks(tmp_path: Path) -> None:
    """The user line is on disk before a slow answer, so that a crash shows what was asked."""
    stored = asyncio.Event()

    async def slow() -> Answer:
        while House.on_disk(tmp_path) != ["user"]:
            await asyncio.sleep(0.005)
        stored.set()
        return Answer("late")

    async with house(tmp_path, slow) as h:
        await h.run()

        assert stored.is_set()
        assert roles(await h.lines()) == ["user", "assistant"]


async def test_the_call_is_stored_before_the_tool_and_the_result_before_the_next_request(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, call("1"), Answer("done")) as h:
        await h.run()

        assert h.tool.seen_on_disk == [["user", "assistant"]]
        assert h.model.seen_on_disk[1] == ["user", "assistant", "tool"]
        lines = await h.lines()
        assert roles(lines) == ["user", "assistant", "tool", "assistant"]
        assert lines[2]["content"] == "counted 1"
        assert lines[3]["tools_used"] == ["count"]
        assert {line["message_id"] for line in lines} == {"m1"}


@pytest.mark.parametrize(
    ("repeatable", "result", "calls"), [(True, "counted 1", ["1"]), (False, INTERRUPTED, [])]
)
async def test_after_a_crash_only_a_repeatable_tool_runs_again(
    tmp_path: Path, repeatable: bool, result: str, calls: list[str]
) -> None:
    async with house(tmp_path, Answer("done"), repeatable=repeatable) as h:
        await h.stored({"role": "user", "content": "hello"}, CALLS)

        reply = await h.run()

        lines = await h.lines()
        assert reply.text == "done"
        assert h.tool.calls == calls
        assert roles(lines) == ["user", "assistant", "tool", "assistant"]
        assert lines[2]["content"] == result
        assert bool(lines[2].get("is_error")) == (not repeatable)


async def test_a_turn_that_stored_its_question_asks_without_storing_it_again(tmp_path: Path) -> None:
    async with house(tmp_path, Answer("done")) as h:
        await h.stored({"role": "user", "content": "hello"})

        await h.run()

        assert roles(await h.lines()) == ["user", "assistant"]
        assert [m["role"] for m in h.model.prompts[0].messages] == ["user"]


async def test_a_turn_with_all_results_stored_only_asks_again(tmp_path: Path) -> None:
    result = {"role": "tool", "content": "counted 1", "tool_call_id": "c1", "name": "count"}
    async with house(tmp_path, Answer("done"), repeatable=False) as h:
        await h.stored({"role": "user", "content": "hello"}, CALLS, result)

        await h.run()

        assert h.tool.calls == []
        assert roles(await h.lines()) == ["user", "assistant", "tool", "assistant"]


async def test_a_half_done_turn_behind_which_others_ran_becomes_a_new_exchange(tmp_path: Path) -> None:
    async with house(tmp_path, Answer("again")) as h:
        await h.stored({"role": "user", "content": "hello"})
        await h.stored(
            {"role": "user", "content": "other", "message_id": "m2"},
            {"role": "assistant", "content": "ok", "message_id": "m2", "final": True},
        )

        await h.run()

        ids = [line["message_id"] for line in await h.lines()]
        assert ids == ["m1", "m2", "m2", "m1", "m1"]


async def test_tools_without_end_are_a_bad_answer_and_leave_a_legal_transcript(tmp_path: Path) -> None:
    answers = [call(str(n), id=f"c{n}") for n in range(5)]
    async with house(tmp_path, *answers, max_tool_rounds=2) as h:
        with pytest.raises(BadAnswer):
            await h.run()

        assert roles(await h.lines()) == ["user", "assistant", "tool", "assistant", "tool"]


async def test_the_rounds_before_a_crash_count(tmp_path: Path) -> None:
    async with house(tmp_path, call("2", id="c2"), max_tool_rounds=1) as h:
        await h.stored({"role": "user", "content": "hello"}, CALLS)

        with pytest.raises(BadAnswer):
            await h.run()


async def test_an_answer_of_blanks_is_a_bad_answer(tmp_path: Path) -> None:
    async with house(tmp_path, Answer(" \n")) as h:
        with pytest.raises(BadAnswer):
            await h.run()


async def test_an_outage_leaves_nothing_of_the_answer_and_the_next_try_answers(tmp_path: Path) -> None:
    async with house(tmp_path, ModelAway("503", cause="unreachable"), Answer("back")) as h:
        with pytest.raises(ModelAway):
            await h.run()

        await h.run()

        assert roles(await h.lines()) == ["user", "assistant"]


async def test_a_stopped_turn_keeps_the_text_so_far_and_says_so(tmp_path: Path) -> None:
    stop = StopSwitch()

    class Talker(Model):
        async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
            assert on_delta is not None
            on_delta("half an ")
            stop.pull()
            await asyncio.Event().wait()
            raise AssertionError

    async with house(tmp_path) as h:
        h.turns.model = Talker()

        reply = await h.run(stop=stop)

        user, closing = await h.lines()
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

    async with house(tmp_path, both) as h:
        h.turns.toolbox = Toolbox([Slow(repeatable=True)])

        await h.run(stop=stop)

        lines = await h.lines()
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

    async with house(tmp_path, hang, Answer("later")) as h:
        task = asyncio.ensure_future(h.run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert all(not line.get("final") for line in await h.lines())
        assert (await h.run()).text == "later"


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
        h.store.beside(disk.wait)  # what is stored from now on comes behind it
        return Answer("just in time")

    async with house(tmp_path, answer, turn_timeout_s=0.05) as h:
        turn = asyncio.create_task(h.run())
        while not (turn.cancelling() or turn.done()):
            await asyncio.sleep(0.005)
        disk.set()
        reply = await turn

        assert (reply.text, reply.seq) == ("just in time", 1)
        assert (await h.lines())[-1]["final"]


async def test_the_time_of_a_turn_counts_from_when_the_model_can_be_asked(tmp_path: Path) -> None:
    """A first letter is not given up for the seconds in which the model's library is imported."""
    model = Cold(Answer("there"))
    h = House(tmp_path, model, Counter(repeatable=True), turn_timeout_s=0.1)
    turn = asyncio.create_task(h.run())
    async with asyncio.timeout(30):
        await model.loading.wait()

    await asyncio.sleep(0.4)  # a time that counted already is over now
    h.turns.limits = TurnLimits()
    model.loaded.set()
    reply = await turn

    assert reply.text == "there"
    await h.store.aclose()


async def test_a_turn_can_be_stopped_while_the_model_is_loaded(tmp_path: Path) -> None:
    """The person does not wait for it; the question is kept, and the model is not asked."""
    model, stop = Cold(), StopSwitch()
    h = House(tmp_path, model, Counter(repeatable=True))
    turn = asyncio.create_task(h.run(stop=stop))
    async with asyncio.timeout(30):
        await model.loading.wait()

    stop.pull()
    reply = await turn

    assert (reply.silent, reply.reason, model.prompts) == (True, "stopped", [])
    assert [line["content"] for line in await h.lines()] == ["hello", ""]
    await h.store.aclose()


async def test_a_turn_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def hang() -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async with house(tmp_path, hang, turn_timeout_s=0.05) as h:
        with pytest.raises(TurnTimeout):
            await h.run()
