"""Background work: scheduled once, durable where it must be, within its budget, and safe from kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.errors import ModelAway, NewerFormat, NotNow
from session.memory.scope_state import ScopeStates
from session.models.model import Answer, Echo, Prompt, Totals, Usage
from tests.session.memory_place import ADA, BOB, START, Clock, place, purse_of, saved, talk
from tests.session.memory_victim import lines_of
from tests.session.rollover_victim import roll

ROOT = Path(__file__).parents[3]
AWAY = ModelAway("gone", cause="unreachable")


def jobs_in(workspace: Path) -> list[Path]:
    """The consolidations that wait."""
    found = (workspace / "state/jobs").glob("*.json")
    return sorted(path for path in found if ".summary." not in path.name)


# -- after turns -----------------------------------------------------------------------------------------


async def test_a_full_window_is_consolidated_in_the_background(tmp_path: Path) -> None:
    """The turn that fills the window starts it, and none before."""
    async with place(tmp_path, run=True) as house:
        await house.turn(ADA, talk(8))
        await house.jobs.settled()
        assert house.model.seen == []

        await house.turn(ADA, talk(2, start=8))
        await house.jobs.settled()

        assert await house.pointer(ADA) == 5


async def test_once_in_flight_per_key(tmp_path: Path) -> None:
    """Turns that end while a consolidation runs start no second one."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with place(tmp_path, slow, run=True) as house:
        await house.turn(ADA, talk(10))
        await house.model.asked(1)
        for number in range(3):
            await house.turn(ADA, talk(2, start=10 + 2 * number))
        assert house.jobs.shown()["running"] == 1
        go.set()
        await house.jobs.settled()

        assert len(house.model.seen) == 1
        assert await house.pointer(ADA) == 5


async def test_a_failing_model_is_not_asked_with_every_message(tmp_path: Path) -> None:
    """After a failure ten more turns cause no call; the time does."""
    async with place(tmp_path, Answer("no"), run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        for number in range(10):
            await house.turn(ADA, talk(2, start=10 + 2 * number))
            await house.jobs.settled()
        assert len(house.model.seen) == 1
        assert house.jobs.shown()["reasons"] == ["failed"]

        house.clock.advance(60)
        await house.model.asked(2)
        await house.jobs.settled()

        assert await house.pointer(ADA) == 25


async def test_an_outage_holds_all_jobs_back(tmp_path: Path) -> None:
    """While the model is away one job at a time looks for it, and nothing is lost."""
    async with place(tmp_path, AWAY, run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        await house.turn(BOB, talk(10))
        await house.jobs.settled()
        assert len(house.model.seen) == 1
        assert house.jobs.shown()["last_error"] == "gone"

        house.clock.advance(15)
        await house.model.asked(3)
        await house.jobs.settled()

        assert (await house.pointer(ADA), await house.pointer(BOB)) == (5, 5)
        assert house.jobs.shown()["last_error"] == ""


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    """A provider that names a time is not asked before it."""
    async with place(tmp_path, ModelAway("slow down", cause="rate_limit", after_s=100), run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        house.clock.advance(99)
        await house.jobs.settled()
        assert len(house.model.seen) == 1

        house.clock.advance(1)
        await house.model.asked(2)


async def test_a_crash_of_one_job_ends_no_other(tmp_path: Path) -> None:
    """An error that nobody foresaw is put off like any other."""
    async with place(tmp_path, RuntimeError("bug"), run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        await house.turn(BOB, talk(10))
        await house.jobs.settled()

        assert await house.pointer(BOB) == 5
        assert house.jobs.shown()["waiting"] == 1


# -- after /new ------------------------------------------------------------------------------------------


async def test_new_waits_for_no_model(tmp_path: Path) -> None:
    """``/new`` is done before the model is asked; the whole tail goes into memory afterwards."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with place(tmp_path, slow, run=True) as house:
        await house.said(ADA, talk(7))
        async with asyncio.timeout(30):
            assert await house.new(ADA)
            await house.model.asked(1)
            await house.said(BOB, talk(2))
        assert "message 6" in house.model.text(0)
        assert len(jobs_in(tmp_path)) == 1
        go.set()
        await house.jobs.settled()

        assert jobs_in(tmp_path) == []
        (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
        head, *lines = archived.read_text().strip().split("\n")
        assert json.loads(head)["last_consolidated"] == len(lines) == 7


async def test_new_without_messages_asks_nobody(tmp_path: Path) -> None:
    """A chat that has said nothing has nothing to remember."""
    async with place(tmp_path) as house:
        assert not await house.new(ADA)

    assert jobs_in(tmp_path) == []


async def test_new_again_is_known(tmp_path: Path) -> None:
    """A redelivered ``/new`` finds its job; once that is done it is not done again."""
    async with place(tmp_path, run=True) as house:
        await house.said(ADA, talk(4))
        assert await house.new(ADA)
        assert await house.new(ADA)
        await house.jobs.settled()
        assert await house.new(ADA)
        await house.jobs.settled()

        assert len(house.model.seen) == 1
        assert jobs_in(tmp_path) == []


async def test_new_that_comes_again_as_its_job_ends_leaves_no_file_behind(tmp_path: Path) -> None:
    """A file that is written anew when the one before it was just struck out is struck out as well."""
    answer = asyncio.Event()
    comes_again, struck, told = threading.Event(), threading.Event(), threading.Event()

    async def slow(prompt: Prompt) -> Answer:
        await answer.wait()
        return saved()

    class InTurn(JobFiles):
        summaries = 0

        def keep(self, job: BackgroundJob) -> None:
            self.summaries += job.kind == "summary"
            if self.summaries == 2:
                comes_again.set()
                struck.wait(30)
            super().keep(job)

        def strike(self, job: BackgroundJob) -> None:
            super().strike(job)
            if job.kind == "consolidate" and not struck.is_set():
                struck.set()
                told.wait(30)

    async with place(tmp_path, slow, run=True) as house:
        house.jobs._files = InTurn(tmp_path / "state")
        await house.said(ADA, talk(4))
        assert await house.new(ADA)
        again = asyncio.ensure_future(house.new(ADA))
        assert await asyncio.to_thread(comes_again.wait, 30)
        answer.set()
        assert await again
        told.set()
        await house.jobs.settled()

        assert jobs_in(tmp_path) == []
        assert len(house.model.seen) == 1


@pytest.mark.parametrize("seen_to", [False, True])
async def test_new_sees_to_a_compaction_whose_process_died(tmp_path: Path, seen_to: bool) -> None:
    """What a compaction ended goes into memory once, also where nobody asked anything before ``/new``."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(6))
        async with house.store.open(ADA) as session:
            ended = await roll(session, 4)
        assert ended is not None
        if seen_to:
            await house.jobs.left(ADA, ended)
    async with place(tmp_path, run=True) as house:
        if seen_to:
            await house.jobs.settled()
        await house.new(ADA)
        await house.jobs.settled()

        asked = [house.model.text(call) for call in range(len(house.model.seen))]
        assert sum("message 3" in text for text in asked) == 1
        assert sum("message 5" in text for text in asked) == 1
        assert jobs_in(tmp_path) == []


async def test_only_the_tail_after_a_window(tmp_path: Path) -> None:
    """``/new`` takes what a window has left, each message once."""
    async with place(tmp_path, run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        await house.new(ADA)
        await house.jobs.settled()

        assert "message 4" not in house.model.text(1)
        assert "message 5" in house.model.text(1)
        assert (await house.read("HISTORY.md")).count("<!-- session") == 2


async def test_jobs_wait_for_a_real_model(tmp_path: Path) -> None:
    """What ended under ``echo`` goes into memory once a model is configured."""
    async with place(tmp_path, model=Echo()) as house:
        await house.said(ADA, talk(4))
        assert await house.new(ADA)

    async with place(tmp_path, run=True) as house:
        await house.model.asked(1)
        await house.jobs.settled()
        assert "- fact 1" in await house.read("MEMORY.md")


async def test_a_job_of_a_deleted_session_is_dropped(tmp_path: Path) -> None:
    """A job whose archive is gone ends without a call."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)
    for path in (tmp_path / "sessions/archive/telegram_1").iterdir():
        path.unlink()

    async with place(tmp_path, run=True) as house:
        await house.jobs.looked.wait()
        await house.jobs.settled()
        assert house.model.seen == []
    assert jobs_in(tmp_path) == []


async def test_two_daemons_do_a_job_once(tmp_path: Path) -> None:
    """Two processes that find the same job ask the model once in all."""
    async with place(tmp_path) as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)

    async with place(tmp_path, run=True) as one, place(tmp_path, run=True) as two:
        for house in (one, two):
            await house.jobs.looked.wait()
        await one.jobs.settled()
        await two.jobs.settled()
        for house in (one, two):  # one after the other, so that none is in the other's way again
            house.clock.advance(60)
            await house.jobs.settled()

        assert len(one.model.seen) + len(two.model.seen) == 1
        assert (await one.read("HISTORY.md")).count("<!-- session") == 1
        assert one.jobs.shown()["waiting"] + two.jobs.shown()["waiting"] == 0


async def test_a_neighbours_turn_is_not_disturbed(tmp_path: Path) -> None:
    """A daemon that consolidates an ended session of a key leaves the turn of that key's owner alone."""
    async with place(tmp_path) as owner, place(tmp_path) as other:
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
    async with place(tmp_path, run=True, clock=clock) as alive:
        await alive.jobs.looked.wait()
        async with place(tmp_path) as dead:
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

    async with place(tmp_path) as house:
        with pytest.raises(NewerFormat):
            await house.jobs.run()


async def test_damaged_state_stops_nothing(tmp_path: Path) -> None:
    """A state file of garbage counts as empty."""
    for name in ("budget.json", "memory/chats/telegram_1.json", "jobs/x.json"):
        path = tmp_path / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"v": 1, "minutes": [')
    async with place(tmp_path, run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()

        assert await house.pointer(ADA) == 5


# -- at once ---------------------------------------------------------------------------------------------


async def test_by_hand_at_once(tmp_path: Path) -> None:
    """By hand all of a key is done now, ended sessions first, whatever back-off and budget say."""
    async with place(tmp_path, calls_per_hour=0) as house:
        await house.said(ADA, talk(4))
        await house.new(ADA)
        await house.said(ADA, talk(8, start=20))

        report = await house.jobs.at_once(ADA)

        assert (report.messages, report.calls) == (4 + 3, 2)
        assert report.memory_bytes == len(await house.read("MEMORY.md")) > report.memory_bytes_before == 0
        assert jobs_in(tmp_path) == []
        assert house.memory.budget.shown()["calls_last_hour"] == 2


async def test_a_desk_is_free_again_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    """Whoever is cancelled while its lock is being taken lets go of it."""
    desks = ScopeStates(tmp_path)

    async def sit() -> None:
        async with desks.open("ada"):
            raise AssertionError("it was cancelled")

    taking = asyncio.ensure_future(sit())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking

    async with desks.open("ada") as desk:
        assert desk.answer is None


# -- the budget ------------------------------------------------------------------------------------------


async def test_budget_per_hour(tmp_path: Path) -> None:
    """At the cap work waits, visibly, over a restart too, and goes on when calls have left the hour."""
    clock = Clock()
    async with place(tmp_path, run=True, clock=clock, calls_per_hour=1) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
    async with place(tmp_path, run=True, clock=clock, calls_per_hour=1) as house:
        await house.turn(BOB, talk(10))
        await house.jobs.settled()
        shown = house.jobs.shown()
        assert house.model.seen == []
        assert shown["reasons"] == ["budget"]
        assert shown["budget"]["calls_last_hour"] == 1
        assert shown["budget"]["reached_until"] == (START + timedelta(hours=1)).isoformat()

        clock.advance(3600)
        await house.model.asked(1)
        await house.jobs.settled()

        assert await house.pointer(BOB) == 5
        assert house.jobs.shown()["budget"]["reached_until"] is None


async def test_a_day_whose_money_is_spent(tmp_path: Path) -> None:
    """Work waits until midnight UTC, visibly; who asks for it is told so, and nothing is asked or counted."""
    clock = Clock()
    purse = purse_of(clock, per_day_usd=1.0)
    dear = replace(saved(), usage=Usage(100, 10, 1.5))
    async with place(tmp_path, dear, run=True, clock=clock, purse=purse) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()
        assert purse.today() == Totals(0, 100, 10, 1.5)

        await house.turn(BOB, talk(10))
        assert await house.new(ADA)
        await house.jobs.settled()
        with pytest.raises(NotNow) as caught:
            await house.jobs.at_once(BOB)
        shown = house.jobs.shown()
        midnight = datetime(2026, 2, 1, tzinfo=UTC)
        assert (caught.value.reason, "cost_per_day_usd" in caught.value.hint) == ("cost", True)
        assert (shown["waiting"], shown["reasons"]) == (3, ["cost"])
        assert shown["next_at"] == shown["budget"]["cost_reached_until"] == midnight.isoformat()
        assert (shown["budget"]["reached_until"], shown["budget"]["calls_last_hour"]) == (None, 1)
        assert (len(house.model.seen), house.model.prose) == (1, [])

        clock.advance((midnight - START).total_seconds())
        await house.model.asked(3)
        await house.jobs.settled()

        assert await house.pointer(BOB) == 5
        assert len(house.model.prose) == 1
        assert house.jobs.shown()["budget"]["cost_reached_until"] is None


async def test_an_answer_that_cannot_be_used_has_cost_what_it_cost(tmp_path: Path) -> None:
    """Of a consolidation, and of a summary."""
    clock = Clock()
    purse = purse_of(clock)
    useless = Answer("", usage=Usage(100, 10, 0.5))
    async with place(tmp_path, useless, run=True, clock=clock, purse=purse) as house:
        house.model.wrote.append(useless)
        await house.said(ADA, talk(4))
        assert await house.new(ADA)
        await house.jobs.settled()

        assert house.jobs.shown()["reasons"] == ["failed"]
        assert purse.today() == Totals(0, 200, 20, 1.0)


async def test_budget_per_day(tmp_path: Path) -> None:
    """The cap of the day holds over the hours, and counts the calls of all daemons."""
    clock = Clock()
    async with (
        place(tmp_path, clock=clock, calls_per_day=2) as one,
        place(tmp_path, clock=clock, calls_per_day=2) as two,
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


async def test_failed_calls_count(tmp_path: Path) -> None:
    """A call that came to nothing was a call."""
    async with place(tmp_path, AWAY, run=True) as house:
        await house.turn(ADA, talk(10))
        await house.jobs.settled()

        assert house.memory.budget.shown()["calls_last_hour"] == 1


# -- kill -9 ---------------------------------------------------------------------------------------------

LIVE = ["ask.before", "ask.after", *(f"{name}.{side}" for name in ("desk", "history", "memory", "pointer")
                                     for side in ("before", "after"))]  # fmt: skip
ENDED = ["end.after", "job.before", "job.after", *LIVE, "strike.before", "strike.after"]


async def victim(workspace: Path, task: str, point: str, number: int = 1) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.session.memory_victim", str(workspace), task, point, str(number)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


def calls(workspace: Path) -> int:
    path = workspace / "calls"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.parametrize(
    ("point", "number"), [*((point, 1) for point in LIVE), ("desk.before", 2), ("desk.after", 2)]
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
    asked_again = point in ("ask.before", "ask.after") or (point, number) == ("desk.before", 1)
    assert calls(tmp_path) == (2 if point != "ask.before" and asked_again else 1)
    assert json.loads((tmp_path / "state/memory/chats/telegram_1.json").read_text())["answer"] is None


@pytest.mark.parametrize("point", ENDED)
async def test_kill_after_new(tmp_path: Path, point: str) -> None:
    """Wherever it dies after ``/new``, a restart finishes the work: nothing lost, nothing twice."""
    await asyncio.to_thread(lines_of, tmp_path)

    assert await victim(tmp_path, "ended", point) == -signal.SIGKILL
    again = "ended" if point in ("end.after", "job.before") else "rest"  # unanswered: /new comes again
    assert await victim(tmp_path, again, "none") == 0

    folder = tmp_path / "memory/chats/telegram_1"
    assert (folder / "HISTORY.md").read_text().count("They talked.") == 1
    assert (folder / "MEMORY.md").read_text() == "- remembered\n"
    assert jobs_in(tmp_path) == []
    (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
    head, *lines = archived.read_text().strip().split("\n")
    assert json.loads(head)["last_consolidated"] == len(lines) == 10
    assert calls(tmp_path) == (2 if point in ("ask.after", "desk.before") else 1)
