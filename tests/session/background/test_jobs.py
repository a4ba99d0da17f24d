"""Background work: scheduled once, durable where it must be, shared with other daemons, safe from kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from session.background.due import LATEST_S
from session.background.job_files import BackgroundJob, JobFiles
from session.background.jobs import LONGEST_WAIT_S
from session.errors import ModelAway, NewerFormat, NotNow
from session.memory.budget import Budget
from session.memory.scope_state import ScopeStates
from session.models.model import Answer, Echo, Prompt, Totals, Usage
from session.store.store import ELSEWHERE, ELSEWHERE_S
from session.transcript.agent import AGENT
from session.transcript.key import SessionKey
from tests.session import dying
from tests.session.memory_place import (
    ADA,
    BOB,
    START,
    Clock,
    Scripted,
    Workspace,
    jobs_in,
    open_workspace,
    saved,
    spending_of,
    talk,
)
from tests.session.memory_victim import lines_of
from tests.session.spending_place import MemoryRows
from tests.session.store_place import reopen, roll
from tests.support.guarantee import guarantee

AWAY = ModelAway("gone", cause="unreachable")


async def turn(workspace: Workspace, key: SessionKey, lines: list[dict[str, Any]]) -> None:
    """Let a turn end, and what it began beside it."""
    await workspace.turn(key, lines)
    await workspace.jobs.settled()


async def later(workspace: Workspace, seconds: float, asked: int) -> None:
    """Let time pass, and see what it begins to its end: so many requests in all."""
    workspace.clock.advance(seconds)
    await workspace.model.asked(asked)
    await workspace.jobs.settled()


async def test_a_full_window_is_consolidated_in_the_background(tmp_path: Path) -> None:
    """The turn that fills the window starts it, and none before."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await turn(workspace, ADA, talk(8))
        assert workspace.model.seen == []

        await turn(workspace, ADA, talk(2, start=8))

        assert await workspace.pointer(ADA) == 5


async def test_once_in_flight_per_key(tmp_path: Path) -> None:
    """Turns that end while a consolidation runs start no second one."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with open_workspace(tmp_path, slow, run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.model.asked(1)
        for number in range(3):
            await workspace.turn(ADA, talk(2, start=10 + 2 * number))
        assert workspace.jobs.shown()["running"] == 1
        go.set()
        await workspace.jobs.settled()

        assert len(workspace.model.seen) == 1
        assert await workspace.pointer(ADA) == 5


@guarantee("writer", "Background work leaves chats alone that another process owns.")
async def test_a_key_of_another_process_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written and no model asked while another process works on a chat; afterwards it is done."""
    elsewhere = True
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.store.serves = lambda key: not elsewhere
        await workspace.turn(ADA, talk(10))
        [transcript] = (tmp_path / "sessions").glob("*.jsonl")
        before = transcript.read_bytes()
        await workspace.jobs.settled()
        assert workspace.model.seen == []
        assert workspace.jobs.shown()["reasons"] == [ELSEWHERE]
        assert workspace.jobs.shown()["last_error"] == ""
        assert transcript.read_bytes() == before

        elsewhere = False
        await later(workspace, ELSEWHERE_S, 1)

        assert await workspace.pointer(ADA) == 5


@pytest.mark.parametrize(
    ("failure", "reason", "after_s"),
    [
        (Answer("no"), "failed", 60),
        # A provider that names a time is not asked before it.
        (ModelAway("slow down", cause="rate_limit", after_s=100), "away", 100),
    ],
)
async def test_a_failing_model_is_not_asked_with_every_message(
    tmp_path: Path, failure: Any, reason: str, after_s: int
) -> None:
    """After a failure ten more turns cause no call; the time does."""
    async with open_workspace(tmp_path, failure, run=True) as workspace:
        await turn(workspace, ADA, talk(10))
        for number in range(10):
            await turn(workspace, ADA, talk(2, start=10 + 2 * number))
        workspace.clock.advance(after_s - 1)
        await workspace.jobs.settled()
        assert len(workspace.model.seen) == 1
        assert workspace.jobs.shown()["reasons"] == [reason]

        await later(workspace, 1, 2)

        assert await workspace.pointer(ADA) == 25


async def test_an_outage_holds_all_jobs_back(tmp_path: Path) -> None:
    """While the model is away one job at a time looks for it, and nothing is lost."""
    async with open_workspace(tmp_path, AWAY, run=True) as workspace:
        await turn(workspace, ADA, talk(10))
        await turn(workspace, BOB, talk(10))
        assert len(workspace.model.seen) == 1
        assert workspace.jobs.shown()["last_error"] == "gone"
        # A call that came to nothing was a call.
        assert workspace.memory.budget.shown()["calls_last_hour"] == 1

        await later(workspace, 15, 3)

        assert (await workspace.pointer(ADA), await workspace.pointer(BOB)) == (5, 5)
        assert workspace.jobs.shown()["last_error"] == ""


async def test_a_model_that_stays_away_keeps_no_notes_of_another_agent_waiting(tmp_path: Path) -> None:
    """That agent has a model of its own, which answers."""
    async with open_workspace(tmp_path, *[AWAY] * 99, run=True) as workspace:
        workspace.memory.add("coder", other := Scripted(), workspace.memory.rules)
        async with workspace.store.open(BOB) as session:
            await session.remember({AGENT: "coder"})
        await turn(workspace, ADA, talk(10))
        await workspace.turn(BOB, talk(10))
        for _ in range(3):
            await workspace.jobs.settled()
            workspace.clock.advance(LONGEST_WAIT_S)
        await workspace.jobs.settled()

        assert len(other.seen) == 1
        assert await workspace.pointer(BOB) == 5


async def test_a_crash_of_one_job_ends_no_other(tmp_path: Path) -> None:
    """An error that nobody foresaw is put off like any other."""
    async with open_workspace(tmp_path, RuntimeError("bug"), run=True) as workspace:
        await turn(workspace, ADA, talk(10))
        await turn(workspace, BOB, talk(10))

        assert await workspace.pointer(BOB) == 5
        assert workspace.jobs.shown()["waiting"] == 1


async def test_two_daemons_do_a_job_once(tmp_path: Path) -> None:
    """Two processes that find the same job ask the model once in all."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)

    async with open_workspace(tmp_path, run=True) as one, open_workspace(tmp_path, run=True) as two:
        for workspace in (one, two):
            await workspace.jobs.looked.wait()
        await one.jobs.settled()
        await two.jobs.settled()
        # One after the other, so that none is in the other's way again.
        for workspace in (one, two):
            workspace.clock.advance(60)
            await workspace.jobs.settled()

        assert len(one.model.seen) + len(two.model.seen) == 1
        assert (await one.read("HISTORY.md")).count("<!-- session") == 1
        assert one.jobs.shown()["waiting"] + two.jobs.shown()["waiting"] == 0


async def test_a_neighbours_turn_is_not_disturbed(tmp_path: Path) -> None:
    """A daemon that consolidates an ended session of a key leaves the turn of that key's owner alone."""
    async with open_workspace(tmp_path) as owner, open_workspace(tmp_path) as other:
        await owner.said(ADA, talk(4))
        await owner.new(ADA)
        async with owner.store.open(ADA) as session:
            await session.append(talk(1))
            report = await other.jobs.at_once(ADA)
            await session.append(talk(1, start=1))

        assert report.messages == 4


async def test_jobs_of_a_dead_neighbour_are_found(tmp_path: Path) -> None:
    """A daemon that goes on running picks up what another one left, without a restart."""
    clock = Clock()
    async with open_workspace(tmp_path, run=True, clock=clock) as alive:
        await alive.jobs.looked.wait()
        async with open_workspace(tmp_path) as dead:
            await dead.said(ADA, talk(4))
            await dead.new(ADA)

        clock.advance(300)
        await alive.model.asked(1)
        await alive.jobs.settled()

    assert jobs_in(tmp_path) == []


async def test_a_state_file_of_a_newer_version(tmp_path: Path) -> None:
    """A job that a newer program wrote is refused, not misread."""
    (tmp_path / "state/jobs").mkdir(parents=True)
    (tmp_path / "state/jobs/x.json").write_text('{"v": 2}')

    async with open_workspace(tmp_path) as workspace:
        with pytest.raises(NewerFormat):
            await workspace.jobs.run()


async def test_damaged_state_stops_nothing(tmp_path: Path) -> None:
    """A state file of garbage counts as empty."""
    for name in ("memory/chats/telegram_1.json", "jobs/x.json"):
        path = tmp_path / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"v": 1, "minutes": [')
    async with open_workspace(tmp_path, run=True) as workspace:
        await turn(workspace, ADA, talk(10))

        assert await workspace.pointer(ADA) == 5


async def test_by_hand_at_once(tmp_path: Path) -> None:
    """By hand all of a key is done now, ended sessions first, whatever back-off and budget say."""
    async with open_workspace(tmp_path, calls_per_hour=1) as workspace:
        await workspace.memory.budget.take()
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
        await workspace.said(ADA, talk(8, start=20))

        report = await workspace.jobs.at_once(ADA)

        assert (report.messages, report.calls) == (4 + 3, 2)
        assert report.memory_bytes == len(await workspace.read("MEMORY.md")) > report.memory_bytes_before == 0
        assert jobs_in(tmp_path) == []
        assert workspace.memory.budget.shown()["calls_last_hour"] == 3


async def test_a_scope_state_is_free_again_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    """Whoever is cancelled while its lock is being taken lets go of it."""
    states = ScopeStates(tmp_path)

    async def sit() -> None:
        async with states.open("ada"):
            raise AssertionError("it was cancelled")

    taking = asyncio.ensure_future(sit())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking

    async with states.open("ada") as state:
        assert state.answer is None


TARGETS = ("scope_state", "history", "memory", "pointer")
STEPS = ["end.after", "job.before", "job.after", "ask.before", "ask.after"]
STEPS += [f"{name}.{side}" for name in (*TARGETS, "strike") for side in ("before", "after")]


async def victim(workspace: Path, task: str, point: str, number: int = 1) -> int:
    return await dying.victim("memory_victim", workspace, task, point, str(number))


def calls(workspace: Path) -> int:
    path = workspace / "calls"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.parametrize("point", STEPS)
async def test_kill_after_new(tmp_path: Path, point: str) -> None:
    """Wherever it dies after ``/new``, a restart finishes the work: nothing lost, nothing twice."""
    await asyncio.to_thread(lines_of, tmp_path)

    assert await victim(tmp_path, "ended", point) == -signal.SIGKILL
    # A ``/new`` that was not answered comes again.
    again = "ended" if point in ("end.after", "job.before") else "rest"
    assert await victim(tmp_path, again, "none") == 0

    folder = tmp_path / "memory/chats/telegram_1"
    assert (folder / "HISTORY.md").read_text().count("They talked.") == 1
    assert (folder / "MEMORY.md").read_text() == "- remembered\n"
    assert jobs_in(tmp_path) == []
    (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
    head, *lines = archived.read_text().strip().split("\n")
    assert json.loads(head)["last_consolidated"] == len(lines) == 10
    assert calls(tmp_path) == (2 if point in ("ask.after", "scope_state.before") else 1)


async def test_new_waits_for_no_model(tmp_path: Path) -> None:
    """``/new`` is done before the model is asked; the whole tail goes into memory afterwards."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with open_workspace(tmp_path, slow, run=True) as workspace:
        await workspace.said(ADA, talk(7))
        async with asyncio.timeout(30):
            assert await workspace.new(ADA)
            await workspace.model.asked(1)
            await workspace.said(BOB, talk(2))
        assert "message 6" in workspace.model.text(0)
        assert len(jobs_in(tmp_path)) == 1
        go.set()
        await workspace.jobs.settled()

        assert jobs_in(tmp_path) == []
        (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
        head, *lines = archived.read_text().strip().split("\n")
        assert json.loads(head)["last_consolidated"] == len(lines) == 7


async def test_new_again_is_known(tmp_path: Path) -> None:
    """A redelivered ``/new`` finds its job; once that is done it is not done again."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)
        assert await workspace.new(ADA)
        await workspace.jobs.settled()
        assert await workspace.new(ADA)
        # A chat that has said nothing has nothing to remember.
        assert not await workspace.new(BOB)
        await workspace.jobs.settled()

        assert len(workspace.model.seen) == 1
        assert jobs_in(tmp_path) == []


@pytest.mark.parametrize("seen_to", [False, True])
async def test_new_sees_to_a_compaction_whose_process_died(tmp_path: Path, seen_to: bool) -> None:
    """What a compaction ended goes into memory once, also where nobody asked anything before ``/new``."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(6))
        async with workspace.store.open(ADA) as session:
            ended = await roll(session, 4)
        assert ended is not None
        if seen_to:
            await workspace.jobs.left(ADA, ended)
    async with open_workspace(tmp_path, run=True) as workspace:
        if seen_to:
            await workspace.jobs.settled()
        await workspace.new(ADA)
        await workspace.jobs.settled()

        asked = [workspace.model.text(call) for call in range(len(workspace.model.seen))]
        assert sum("message 3" in text for text in asked) == 1
        assert sum("message 5" in text for text in asked) == 1
        assert jobs_in(tmp_path) == []


async def test_only_the_tail_after_a_window(tmp_path: Path) -> None:
    """``/new`` takes what a window has left, each message once."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await turn(workspace, ADA, talk(10))
        await workspace.new(ADA)
        await workspace.jobs.settled()

        assert "message 4" not in workspace.model.text(1)
        assert "message 5" in workspace.model.text(1)
        assert (await workspace.read("HISTORY.md")).count("<!-- session") == 2


async def test_jobs_wait_for_a_real_model(tmp_path: Path) -> None:
    """What ended under ``echo`` goes into memory once a model is configured."""
    async with open_workspace(tmp_path, model=Echo()) as workspace:
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)

    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.model.asked(1)
        await workspace.jobs.settled()
        assert "- fact 1" in await workspace.read("MEMORY.md")


async def test_a_job_of_a_deleted_session_is_dropped(tmp_path: Path) -> None:
    """A job whose archive is gone ends without a call."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
    for path in (tmp_path / "sessions/archive/telegram_1").iterdir():
        path.unlink()

    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        assert workspace.model.seen == []
    assert jobs_in(tmp_path) == []


async def end(workspace: Workspace) -> str:
    """End a session of six messages; return its ULID."""
    await workspace.said(ADA, talk(6))
    session_id = (await workspace.store.look(ADA)).session_id
    assert await workspace.new(ADA)
    return session_id


async def end_again(workspace: Workspace, session_id: str) -> None:
    """Open a session again, and end it with four messages more."""
    await reopen(workspace.store, session_id, ADA)
    await workspace.said(ADA, talk(4, start=6))
    assert await workspace.new(ADA)


async def all_is_in_memory(folder: Path) -> None:
    """Let a later process do what its files say, and see that nothing of the session is left."""
    async with open_workspace(folder, run=True) as workspace:
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        asked = [workspace.model.text(call) for call in range(len(workspace.model.seen))]
    assert sum("message 9" in text for text in asked) == 1
    (archived,) = (folder / "sessions/archive/telegram_1").glob("*.jsonl")
    assert json.loads(archived.read_text().split("\n")[0])["last_consolidated"] == 10
    assert jobs_in(folder) == []


async def test_a_session_that_ends_again_while_its_job_runs_waits_over_a_restart(tmp_path: Path) -> None:
    """The second try meets an outage, and the process ends before the model is back."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with open_workspace(tmp_path, slow, AWAY, run=True) as workspace:
        session_id = await end(workspace)
        await workspace.model.asked(1)
        await end_again(workspace, session_id)
        go.set()
        await workspace.model.asked(2)
        await workspace.jobs.settled()

        assert workspace.jobs.shown()["reasons"] == ["away"]
        assert len(jobs_in(tmp_path)) == 1
    await all_is_in_memory(tmp_path)


async def test_a_session_that_ends_between_the_look_of_its_job_and_its_end_waits(tmp_path: Path) -> None:
    """The job finds it active and has nothing to do: the file that is written then is of the next one."""
    looked, ended = threading.Event(), threading.Event()

    class Late(JobFiles):
        def strike(self, job: BackgroundJob, **more: Any) -> None:
            if job.kind == "consolidate" and not looked.is_set():
                looked.set()
                ended.wait(30)
            super().strike(job, **more)

    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace)
        await reopen(workspace.store, session_id, ADA)
    async with open_workspace(tmp_path, AWAY, run=True, files=Late(tmp_path / "state")) as workspace:
        assert await asyncio.to_thread(looked.wait, 30)
        await workspace.said(ADA, talk(4, start=6))
        assert await workspace.new(ADA)
        ended.set()
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert len(jobs_in(tmp_path)) == 1
    await all_is_in_memory(tmp_path)


async def test_a_session_that_ends_again_while_a_person_waits_for_memory_keeps_its_job(
    tmp_path: Path,
) -> None:
    """What is asked for at once was read before: it ends no job that came behind."""
    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace)

        async def meanwhile(prompt: Prompt) -> Answer:
            await end_again(workspace, session_id)
            return saved()

        workspace.model.steps.append(meanwhile)
        report = await workspace.jobs.at_once(ADA)

        assert (report.messages, len(jobs_in(tmp_path))) == (6, 1)
        assert (await workspace.jobs.at_once(ADA)).messages == 4
        assert jobs_in(tmp_path) == []


CHATS = [SessionKey(f"telegram:{number}") for number in range(100, 106)]


@pytest.mark.parametrize("kind", ["chat", "workspace"])
async def test_a_call_that_hangs_holds_up_its_own_scope_alone(
    tmp_path: Path, kind: Literal["chat", "workspace"]
) -> None:
    """However many jobs wait behind it; those come one after the other once it is done."""
    go, group = asyncio.Event(), kind == "workspace"

    async def hangs(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    # One chat whose sessions end one after the other, or many that share one memory.
    keys = CHATS if kind == "workspace" else [ADA] * 6
    async with open_workspace(tmp_path, hangs, kind=kind, run=True) as workspace:
        await workspace.said(keys[0], talk(7))
        await workspace.new(keys[0])
        await workspace.model.asked(1)
        for key in keys[1:]:
            await workspace.said(key, talk(7))
            await workspace.new(key)
        await workspace.said(BOB, talk(7, group=True) if group else talk(7))
        await workspace.new(BOB)

        async with asyncio.timeout(30):
            await workspace.model.asked(2)
        assert "They talked" not in await workspace.read("HISTORY.md", keys[0])

        go.set()
        await workspace.jobs.settled()
        assert len(workspace.model.seen) == len(keys) + 1
        assert (await workspace.read("HISTORY.md", BOB)).count("<!--") == 1
        assert (await workspace.read("HISTORY.md", keys[0])).count("<!--") == len(keys)


QUIET_S = 0.5


@pytest.mark.parametrize(
    ("first_s", "second_s", "quiet_s"),
    [(QUIET_S - 0.1, QUIET_S, QUIET_S), (LATEST_S / 2, LATEST_S / 2, LATEST_S - 1)],
    ids=["in a quiet moment", "where chats never rest"],
)
async def test_it_begins_when_chats_rest_or_after_a_while(
    tmp_path: Path, first_s: float, second_s: float, quiet_s: float
) -> None:
    """A turn that ends meanwhile, of whichever chat, puts it off again, but for five seconds in all."""
    async with open_workspace(tmp_path, run=True, quiet_s=quiet_s) as workspace:
        await workspace.turn(ADA, talk(10))
        workspace.clock.advance(first_s)
        await workspace.turn(BOB, talk(2))
        workspace.clock.advance(second_s - 0.1)
        await workspace.jobs.settled()
        assert workspace.model.seen == []

        await later(workspace, 0.1, 1)

        assert await workspace.pointer(ADA) == 5


async def test_what_a_person_ended_begins_at_once(tmp_path: Path) -> None:
    """The next conversation may ask for what was said in the one before."""
    async with open_workspace(tmp_path, run=True, quiet_s=QUIET_S) as workspace:
        await workspace.turn(ADA, talk(4))
        await workspace.new(ADA)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert len(workspace.model.seen) == 1


class Hasty(Clock):
    """Wakes who sleeps a moment too early, as loops may, and goes on with each look at it."""

    def __call__(self) -> datetime:
        now = self.now
        self.forward(0.002)
        return now

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return self._short(seconds) if seconds < LATEST_S else super().sleep(seconds)

    async def _short(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.forward(max(0.0, seconds - 0.003))


async def test_what_comes_due_while_it_is_looked_for_begins(tmp_path: Path) -> None:
    """A moment that passes between two looks at the clock is nobody's: no later one would begin the job."""
    async with open_workspace(tmp_path, run=True, clock=Hasty(), quiet_s=QUIET_S) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(ADA) == 5


async def test_budget_per_hour(tmp_path: Path) -> None:
    """At the cap work waits, visibly, over a restart too, and goes on when calls have left the hour."""
    clock = Clock()
    async with open_workspace(tmp_path, run=True, clock=clock, calls_per_hour=1) as workspace:
        await turn(workspace, ADA, talk(10))
    async with open_workspace(tmp_path, run=True, clock=clock, calls_per_hour=1) as workspace:
        await turn(workspace, BOB, talk(10))
        shown = workspace.jobs.shown()
        assert workspace.model.seen == []
        assert shown["reasons"] == ["budget"]
        assert shown["budget"]["calls_last_hour"] == 1
        assert shown["budget"]["reached_until"] == (START + timedelta(hours=1)).isoformat()

        clock.advance(3600)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(BOB) == 5
        assert workspace.jobs.shown()["budget"]["reached_until"] is None


async def test_a_day_whose_money_is_spent(tmp_path: Path) -> None:
    """Work waits until midnight UTC, visibly; who asks for it is told so, and nothing is asked or counted."""
    clock = Clock()
    spending = spending_of(clock, per_day_usd=1.0)
    dear = replace(saved(), usage=Usage(100, 10, 1.5))
    async with open_workspace(tmp_path, dear, run=True, clock=clock, spending=spending) as workspace:
        await turn(workspace, ADA, talk(10))
        assert await spending.today() == Totals(0, Usage(100, 10, 1.5))

        await workspace.turn(BOB, talk(10))
        assert await workspace.new(ADA)
        await workspace.jobs.settled()
        with pytest.raises(NotNow) as caught:
            await workspace.jobs.at_once(BOB)
        shown = workspace.jobs.shown()
        midnight = datetime(2026, 2, 1, tzinfo=UTC)
        assert (caught.value.reason, "cost_per_day_usd" in caught.value.hint) == ("cost", True)
        assert (shown["waiting"], shown["reasons"]) == (3, ["cost"])
        assert shown["next_at"] == shown["budget"]["cost_reached_until"] == midnight.isoformat()
        assert (shown["budget"]["reached_until"], shown["budget"]["calls_last_hour"]) == (None, 1)
        assert (len(workspace.model.seen), workspace.model.prose) == (1, [])

        clock.advance((midnight - START).total_seconds())
        await workspace.model.asked(3)
        await workspace.jobs.settled()

        assert await workspace.pointer(BOB) == 5
        assert len(workspace.model.prose) == 1
        assert workspace.jobs.shown()["budget"]["cost_reached_until"] is None


async def test_an_answer_that_cannot_be_used_has_cost_what_it_cost(tmp_path: Path) -> None:
    """Of a consolidation, and of a summary."""
    clock = Clock()
    spending = spending_of(clock)
    useless = Answer("", usage=Usage(100, 10, 0.5))
    async with open_workspace(tmp_path, useless, run=True, clock=clock, spending=spending) as workspace:
        workspace.model.wrote.append(useless)
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)
        await workspace.jobs.settled()

        assert workspace.jobs.shown()["reasons"] == ["failed"]
        assert await spending.today() == Totals(0, Usage(200, 20, 1.0))


async def test_budget_per_day(tmp_path: Path) -> None:
    """The cap of the day holds over the hours, and counts the calls of all daemons."""
    clock = Clock()
    async with (
        open_workspace(tmp_path, clock=clock, calls_per_day=2) as one,
        open_workspace(tmp_path, clock=clock, calls_per_day=2) as two,
    ):
        await one.memory.budget.take()
        clock.advance(5 * 3600)
        await two.memory.budget.take()
        clock.advance(5 * 3600)
        with pytest.raises(NotNow) as raised:
            await one.memory.budget.take()
        assert raised.value.until == START + timedelta(days=1)

        clock.advance(14 * 3600)
        await one.memory.budget.take()


@pytest.mark.parametrize(("hour", "day", "held"), [(0, 0, None), (0, 2, "day"), (2, 0, "hour")])
async def test_a_limit_of_0_is_none(tmp_path: Path, hour: int, day: int, held: str | None) -> None:
    """As everywhere in ``[limits]``; the other one holds, and what is called is counted all the same."""
    clock = Clock()
    budget = Budget(MemoryRows(), per_hour=hour, per_day=day, clock=clock)
    await budget.take()
    await budget.take()
    spans = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
    if held is None:
        await budget.take()
    else:
        with pytest.raises(NotNow) as raised:
            await budget.take()
        assert raised.value.until == START + spans[held]

    shown = budget.shown()
    assert shown["calls_last_hour"] == shown["calls_last_day"] == (3 if held is None else 2)
    assert (shown["reached_until"] is None) == (held is None)
