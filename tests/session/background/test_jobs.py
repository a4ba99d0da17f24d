"""Background work: scheduled once, durable where it must be, shared with other daemons, safe from kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from session.background.jobs import LONGEST_WAIT_S
from session.errors import ModelAway, NewerFormat
from session.memory.scope_state import ScopeStates
from session.models.model import Answer, Prompt
from session.store.store import ELSEWHERE, ELSEWHERE_S
from session.transcript.agent import AGENT
from tests.session import dying
from tests.session.memory_place import ADA, BOB, Clock, Scripted, jobs_in, open_workspace, saved, talk
from tests.session.memory_victim import lines_of
from tests.support.guarantee import guarantee

ROOT = Path(__file__).parents[3]
AWAY = ModelAway("gone", cause="unreachable")


async def test_a_full_window_is_consolidated_in_the_background(tmp_path: Path) -> None:
    """The turn that fills the window starts it, and none before."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.turn(ADA, talk(8))
        await workspace.jobs.settled()
        assert workspace.model.seen == []

        await workspace.turn(ADA, talk(2, start=8))
        await workspace.jobs.settled()

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
    """Nothing is claimed and no model asked while another process works on a chat; afterwards it is done."""
    elsewhere = True
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.store.serves = lambda key: not elsewhere
        await workspace.turn(ADA, talk(10))
        owner = workspace.store.layout.lock(await workspace.store.stem(ADA)).read_bytes()
        await workspace.jobs.settled()
        assert workspace.model.seen == []
        assert workspace.jobs.shown()["reasons"] == [ELSEWHERE]
        assert workspace.jobs.shown()["last_error"] == ""
        assert workspace.store.layout.lock(await workspace.store.stem(ADA)).read_bytes() == owner

        elsewhere = False
        workspace.clock.advance(ELSEWHERE_S)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(ADA) == 5


async def test_a_failing_model_is_not_asked_with_every_message(tmp_path: Path) -> None:
    """After a failure ten more turns cause no call; the time does."""
    async with open_workspace(tmp_path, Answer("no"), run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        for number in range(10):
            await workspace.turn(ADA, talk(2, start=10 + 2 * number))
            await workspace.jobs.settled()
        assert len(workspace.model.seen) == 1
        assert workspace.jobs.shown()["reasons"] == ["failed"]

        workspace.clock.advance(60)
        await workspace.model.asked(2)
        await workspace.jobs.settled()

        assert await workspace.pointer(ADA) == 25


async def test_an_outage_holds_all_jobs_back(tmp_path: Path) -> None:
    """While the model is away one job at a time looks for it, and nothing is lost."""
    async with open_workspace(tmp_path, AWAY, run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        await workspace.turn(BOB, talk(10))
        await workspace.jobs.settled()
        assert len(workspace.model.seen) == 1
        assert workspace.jobs.shown()["last_error"] == "gone"

        workspace.clock.advance(15)
        await workspace.model.asked(3)
        await workspace.jobs.settled()

        assert (await workspace.pointer(ADA), await workspace.pointer(BOB)) == (5, 5)
        assert workspace.jobs.shown()["last_error"] == ""


async def test_a_model_that_stays_away_keeps_no_notes_of_another_agent_waiting(tmp_path: Path) -> None:
    """That agent has a model of its own, which answers."""
    async with open_workspace(tmp_path, *[AWAY] * 99, run=True) as workspace:
        workspace.memory.add("coder", other := Scripted(), workspace.memory.rules)
        async with workspace.store.open(BOB) as session:
            await session.remember({AGENT: "coder"})
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        await workspace.turn(BOB, talk(10))
        for _ in range(3):
            await workspace.jobs.settled()
            workspace.clock.advance(LONGEST_WAIT_S)
        await workspace.jobs.settled()

        assert len(other.seen) == 1
        assert await workspace.pointer(BOB) == 5


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    """A provider that names a time is not asked before it."""
    async with open_workspace(
        tmp_path, ModelAway("slow down", cause="rate_limit", after_s=100), run=True
    ) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        workspace.clock.advance(99)
        await workspace.jobs.settled()
        assert len(workspace.model.seen) == 1

        workspace.clock.advance(1)
        await workspace.model.asked(2)


async def test_a_crash_of_one_job_ends_no_other(tmp_path: Path) -> None:
    """An error that nobody foresaw is put off like any other."""
    async with open_workspace(tmp_path, RuntimeError("bug"), run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        await workspace.turn(BOB, talk(10))
        await workspace.jobs.settled()

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


@pytest.mark.parametrize("name", ["budget.json", "jobs/x.json"])
async def test_a_state_file_of_a_newer_version(tmp_path: Path, name: str) -> None:
    """A job or budget that a newer program wrote is refused, not misread."""
    (tmp_path / "state/jobs").mkdir(parents=True)
    (tmp_path / "state" / name).write_text('{"v": 2}')

    async with open_workspace(tmp_path) as workspace:
        with pytest.raises(NewerFormat):
            await workspace.jobs.run()


async def test_damaged_state_stops_nothing(tmp_path: Path) -> None:
    """A state file of garbage counts as empty."""
    for name in ("budget.json", "memory/chats/telegram_1.json", "jobs/x.json"):
        path = tmp_path / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"v": 1, "minutes": [')
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()

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
LIVE = ["ask.before", "ask.after", *(f"{name}.{side}" for name in TARGETS for side in ("before", "after"))]


ENDED = ["end.after", "job.before", "job.after", *LIVE, "strike.before", "strike.after"]


async def victim(workspace: Path, task: str, point: str, number: int = 1) -> int:
    return await dying.victim("memory_victim", workspace, task, point, str(number))


def calls(workspace: Path) -> int:
    path = workspace / "calls"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.parametrize(
    ("point", "number"),
    [*((point, 1) for point in LIVE), ("scope_state.before", 2), ("scope_state.after", 2)],
)
async def test_kill_during_a_window(tmp_path: Path, point: str, number: int) -> None:
    """Wherever it dies, the next try ends with one paragraph, the notes and the pointer."""
    await asyncio.to_thread(lines_of, tmp_path)

    assert await victim(tmp_path, "live", point, number) == -signal.SIGKILL
    assert await victim(tmp_path, "live", "none") == 0

    folder = tmp_path / "memory/chats/telegram_1"
    assert (folder / "HISTORY.md").read_text().count("They talked.") == 1
    assert (folder / "MEMORY.md").read_text() == "- remembered\n"
    assert (
        json.loads((tmp_path / "sessions/telegram_1.jsonl").read_text().split("\n")[0])["last_consolidated"]
        == 5
    )
    asked_again = point in ("ask.before", "ask.after") or (point, number) == ("scope_state.before", 1)
    assert calls(tmp_path) == (2 if point != "ask.before" and asked_again else 1)
    assert json.loads((tmp_path / "state/memory/chats/telegram_1.json").read_text())["answer"] is None


@pytest.mark.parametrize("point", ENDED)
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
