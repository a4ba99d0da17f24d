"""The clock: each slot once, whatever dies, hangs, is edited or is set back."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from channels.base import Piece, Pulse, Rendered
from channels.cron import Cron, run_now
from channels.cron_file import Contents, CronFile
from channels.cron_job import BadJob, new_row
from channels.errors import ChannelError
from channels.message import Inbound, read_inbound
from channels.schedule import At, Every

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PATIENCE_S = 60


class Time:
    """A clock that stands until it is moved; it moves on once the scheduler waits again."""

    def __init__(self) -> None:
        self.now = NOON
        self.waited = False  # the scheduler looked at it at least once
        self.free = threading.Event()  # cleared, it keeps a thread that looked at it
        self.free.set()
        self.kept = asyncio.Event()  # such a thread is there
        self._waiting: list[tuple[datetime, asyncio.Event, bool]] = []
        self._changed = asyncio.Condition()
        self._loop = asyncio.get_running_loop()

    def clock(self) -> datetime:
        now = self.now
        if threading.current_thread() is not threading.main_thread() and not self.free.is_set():
            self._loop.call_soon_threadsafe(self.kept.set)
            assert self.free.wait(PATIENCE_S)
        return now

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        over = asyncio.Event()
        task = asyncio.current_task()
        notes = task is not None and task.get_name() == "cron notes"
        entry = (self.now + timedelta(seconds=seconds), over, notes)
        self._waiting.append(entry)
        self.waited = True
        async with self._changed:
            self._changed.notify_all()
        both = [asyncio.ensure_future(one.wait()) for one in (event, over)]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def idle(self) -> None:
        """Wait until the scheduler waits."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: any(not notes for _, _, notes in self._waiting))

    async def to(self, instant: datetime) -> None:
        """Move on from one wait to the next, up to an instant; or be set back to it at once."""
        await self.idle()
        if instant < self.now:
            self.now = instant
            await self._wake(NOON + 1000 * DAY)
            return
        while self.now < instant:
            self.now = min([instant, *(deadline for deadline, _, _ in self._waiting)])
            await self._wake(self.now)

    async def leap(self, instant: datetime) -> None:
        """Be at an instant at once, as after a sleep of the machine."""
        await self.idle()
        self.now = instant
        await self._wake(instant)

    def end_rests(self) -> None:
        """Let whoever writes the notes go on, as if its rest were over; it may have begun it a moment ago."""
        for entry in list(self._waiting):
            if entry[2]:
                self._waiting.remove(entry)
                entry[1].set()

    async def _wake(self, until: datetime) -> None:
        for entry in list(self._waiting):
            if entry[0] <= until:
                self._waiting.remove(entry)
                entry[1].set()
        await self.idle()


class File(CronFile):
    """The file, which says when it was noted, and may refuse."""

    def __init__(self, workspace: Path, time: Time) -> None:
        super().__init__(workspace, clock=time.clock)
        self._loop = asyncio.get_running_loop()
        self.noted = asyncio.Event()
        self.refuses = False
        self.free = threading.Event()  # cleared, it holds the next note up
        self.free.set()
        self.held = asyncio.Event()  # one is held up

    def note(self, *args: Any, **kwargs: Any) -> Contents:
        if not self.free.is_set() and not self.held.is_set():
            self._loop.call_soon_threadsafe(self.held.set)
            assert self.free.wait(PATIENCE_S)
        try:
            if self.refuses:
                raise ChannelError("cron/jobs.json cannot be written: No space left on device")
            return super().note(*args, **kwargs)
        finally:
            self._loop.call_soon_threadsafe(self.noted.set)


class Place:
    """A workspace with a clock of its own, and what was put."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.state = workspace / "state"
        self.time = Time()
        self.file = File(workspace, self.time)
        self.put: list[Inbound] = []
        self.changed = asyncio.Condition()
        self.before_put: Callable[[Inbound], Awaitable[None]] | None = None
        self.pulse = Pulse(self.time.clock)

    async def take(self, inbound: Inbound) -> None:
        if self.before_put is not None:
            await self.before_put(inbound)
        assert read_inbound(inbound.to_bytes()) == (inbound, [])
        self.put.append(inbound)
        async with self.changed:
            self.changed.notify_all()

    @asynccontextmanager
    async def running(self, *, state: Path | None = None, wait: bool = True) -> AsyncIterator[Cron]:
        clock = Cron(
            self.file,
            state or self.state,
            pulse=self.pulse,
            clock=self.time.clock,
            put=self.take,
            pause=self.time.pause,
        )
        self.clock = clock
        self.task = task = asyncio.create_task(clock.run(), name="clock")
        try:
            if wait:
                await self.time.idle()
            yield clock
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended

    async def count(self, number: int) -> list[str]:
        """Wait until so many were put; return the slots."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: len(self.put) >= number)
        return self.slots

    async def noted(self, said: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait until the file says so."""
        async with asyncio.timeout(PATIENCE_S):
            while not said(self.on_disk()):
                self.time.end_rests()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.file.noted.wait(), 0.1)
                self.file.noted.clear()

    @property
    def slots(self) -> list[str]:
        return [inbound.id.removeprefix("cron:").replace("2026-06-", "") for inbound in self.put]

    def write(self, *rows: dict[str, Any]) -> None:
        self.text(jobs(*rows))

    def text(self, text: str) -> None:
        """Write as an editor does: by another file, renamed."""
        self.file.path.parent.mkdir(exist_ok=True)
        beside = self.file.path.with_name("edited")
        beside.write_text(text)
        beside.replace(self.file.path)

    async def edit(self, text: str) -> None:
        """Write while the clock runs; what it writes itself has been taken over, so that it looks again."""
        async with self.clock._access:
            self.text(text)

    async def taken_over(self) -> None:
        """Wait until what the clock is writing itself has been taken over, so that it looks again."""
        async with asyncio.timeout(PATIENCE_S), self.clock._access:
            pass

    def on_disk(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in json.loads(self.file.path.read_text())["jobs"]}


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def jobs(*rows: dict[str, Any]) -> str:
    return json.dumps({"version": 1, "jobs": rows})


def hourly(job_id: str = "a", policy: str = "once", **state: Any) -> dict[str, Any]:
    schedule = {"kind": "cron", "expr": "0 * * * *", "tz": "UTC", "missed": policy}
    return {
        "id": job_id,
        "name": job_id,
        "schedule": schedule,
        "payload": {"message": "hello"},
        "state": state,
    }


def every(seconds: float, job_id: str = "a", **fields: Any) -> dict[str, Any]:
    schedule = {"kind": "every", "everyMs": int(seconds * 1000)}
    return hourly(job_id) | {"schedule": schedule, "createdAtMs": ms(NOON)} | fields


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


# -- a slot --------------------------------------------------------------------------------------------


async def test_a_job_is_put_at_its_slot_and_not_before(place: Place) -> None:
    row = new_row(At(NOON + HOUR), "what is new?", at=NOON, to="telegram:-100:topic:5")
    place.file.add(row)

    async with place.running():
        await place.time.to(NOON + HOUR - timedelta(milliseconds=1))
        assert place.put == []
        await place.time.to(NOON + HOUR)
        await place.count(1)

    (inbound,) = place.put
    assert inbound.id == f"cron:{row['id']}@2026-06-01T13:00:00Z"
    assert (inbound.key, inbound.channel, inbound.chat_id) == (f"cron:{row['id']}", "cron", row["id"])
    assert (inbound.text, inbound.kind, inbound.answer_to) == (
        "what is new?",
        "message",
        "telegram:-100:topic:5",
    )
    assert (inbound.source, inbound.cron_job_id) == ("cron", row["id"])
    assert inbound.sent_at == "2026-06-01T13:00:00.000000+00:00"


async def test_slots_follow_one_another_each_once(place: Place) -> None:
    place.write(every(5, "a"), every(2.5, "b"))

    async with place.running():
        await place.time.to(NOON + timedelta(seconds=10))
        slots = await place.count(6)

    assert [slot for slot in slots if slot.startswith("a")] == ["a@01T12:00:05Z", "a@01T12:00:10Z"]
    assert [slot for slot in slots if slot.startswith("b")] == [
        "b@01T12:00:02.500Z",
        "b@01T12:00:05Z",
        "b@01T12:00:07.500Z",
        "b@01T12:00:10Z",
    ]


async def test_an_answer_without_a_chat_stays_in_the_session(place: Place) -> None:
    place.write(every(5))

    async with place.running() as clock:
        await place.time.to(NOON + timedelta(seconds=5))
        await place.count(1)
        assert await clock.send(Piece("a", clock.split("text")[0], nonce="n")) == ""

    assert place.put[0].answer_to is None
    assert clock.split("*text*") == [Rendered("*text*")]


async def test_a_run_is_noted_once_its_letter_is_durable(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))
    durable = asyncio.Event()
    begun = asyncio.Event()

    async def hold(_: Inbound) -> None:
        begun.set()
        await durable.wait()

    place.before_put = hold
    async with place.running():
        await place.time.to(NOON + HOUR)
        await begun.wait()
        assert "lastRunAtMs" not in place.on_disk()["a"]["state"]
        durable.set()
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")

    state = place.on_disk()["a"]["state"]
    assert state["nextRunAtMs"] == ms(NOON + 2 * HOUR)
    assert [entry["status"] for entry in state["runHistory"]] == ["ok"]


async def test_what_died_before_it_was_noted_is_put_again_under_the_same_id(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))
    place.file.refuses = True

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
    place.file = File(place.workspace, place.time)
    async with place.running():
        await place.count(2)

    assert place.slots == ["a@01T13:00:00Z"] * 2


async def test_what_was_noted_is_not_put_again(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")
    async with place.running():
        await place.time.to(NOON + 2 * HOUR)
        await place.count(2)

    assert place.slots == ["a@01T13:00:00Z", "a@01T14:00:00Z"]


async def test_what_is_noted_at_the_end_is_not_overtaken_by_what_was_being_noted(place: Place) -> None:
    place.write(every(5))

    async with place.running():
        await place.noted(lambda jobs: "nextRunAtMs" in jobs["a"]["state"])
        await place.taken_over()
        place.file.free.clear()
        await place.time.to(NOON + timedelta(seconds=5))
        await asyncio.wait_for(place.file.held.wait(), PATIENCE_S)
        await place.time.to(NOON + timedelta(seconds=10))
        await place.count(2)
        place.task.cancel()
        _, pending = await asyncio.wait([place.task], timeout=0.3)
        place.file.free.set()
        assert pending

    state = place.on_disk()["a"]["state"]
    assert len(state["runHistory"]) == 2
    assert (state["lastSlotMs"], state["nextRunAtMs"]) == (ms(NOON) + 10_000, ms(NOON) + 15_000)


async def test_slots_that_pass_while_a_run_is_noted_are_made_up(place: Place) -> None:
    """The note knows of the first run alone; the process has run on, and is behind its clock."""
    job = every(5)
    job["schedule"]["missed"] = "all"
    place.write(job)

    async with place.running():
        await place.noted(lambda jobs: "nextRunAtMs" in jobs["a"]["state"])
        await place.taken_over()
        place.file.free.clear()
        await place.time.to(NOON + timedelta(seconds=5))
        await asyncio.wait_for(place.file.held.wait(), PATIENCE_S)
        await place.time.to(NOON + timedelta(seconds=10))
        await place.count(2)
        while place.clock._next.get("a") != NOON + timedelta(seconds=15) or place.clock._wake.is_set():
            await asyncio.sleep(0)
        place.time.now = NOON + timedelta(seconds=24)
        place.file.free.set()
        await place.noted(lambda jobs: len(jobs["a"]["state"].get("runHistory", ())) > 0)
        await place.taken_over()
        await place.time.to(NOON + timedelta(seconds=25))
        await place.count(5)

    assert [slot.rpartition(":")[2] for slot in place.slots] == ["05Z", "10Z", "15Z", "20Z", "25Z"]


async def test_a_disk_that_was_full_is_noted_later(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))
    place.file.refuses = True

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        await place.file.noted.wait()
        await place.time.to(NOON + 2 * HOUR)
        await place.count(2)
        place.file.refuses = False
        await place.time.to(NOON + 2 * HOUR + timedelta(seconds=10))
        await place.noted(lambda jobs: len(jobs["a"]["state"].get("runHistory", ())) == 2)

    assert place.slots == ["a@01T13:00:00Z", "a@01T14:00:00Z"]


async def test_a_letter_that_hangs_holds_up_no_other_job(place: Place) -> None:
    place.write(every(5, "a"), every(5, "b"))

    async def hold(inbound: Inbound) -> None:
        if inbound.cron_job_id == "a":
            await asyncio.Event().wait()

    place.before_put = hold
    async with place.running():
        for number in range(1, 4):
            await place.time.to(NOON + timedelta(seconds=5 * number))
            await place.count(number)

    assert place.slots == ["b@01T12:00:05Z", "b@01T12:00:10Z", "b@01T12:00:15Z"]


async def test_slots_that_passed_while_the_queue_was_away_are_made_up_by_policy(place: Place) -> None:
    place.write(hourly("once"), hourly("all", "all"))
    back = asyncio.Event()

    async def hold(_: Inbound) -> None:
        await back.wait()

    place.before_put = hold
    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.time.leap(NOON + 4 * HOUR + MINUTE)
        back.set()
        await place.count(6)
        await place.time.to(NOON + 5 * HOUR)
        slots = await place.count(8)

    hours = {name: [slot[-9:-7] for slot in slots if slot.startswith(name)] for name in ("once", "all")}
    assert hours == {"once": ["13", "16", "17"], "all": ["13", "14", "15", "16", "17"]}


async def test_a_letter_that_is_refused_is_noted_as_an_error_and_the_clock_goes_on(place: Place) -> None:
    place.write(hourly())

    async def refuse(_: Inbound) -> None:
        place.before_put = None
        raise ValueError("not this one")

    place.before_put = refuse
    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "error")
        await place.time.to(NOON + 2 * HOUR)
        await place.count(1)

    assert place.on_disk()["a"]["state"]["runHistory"][0]["error"] == "ValueError: not this one"


# -- missed --------------------------------------------------------------------------------------------


async def test_what_nobody_looked_at_is_made_up_at_the_start(place: Place) -> None:
    stood = ms(NOON - 2 * HOUR)
    place.write(
        hourly("once", nextRunAtMs=stood),
        hourly("all", "all", nextRunAtMs=stood),
        hourly("skip", "skip", nextRunAtMs=stood),
    )
    place.time.now = NOON + 10 * MINUTE

    async with place.running():
        await place.count(4)
        await place.noted(lambda jobs: all(job["state"].get("lastStatus") for job in jobs.values()))

    assert sorted(place.slots) == [
        "all@01T10:00:00Z",
        "all@01T11:00:00Z",
        "all@01T12:00:00Z",
        "once@01T12:00:00Z",
    ]
    jobs = place.on_disk()
    assert {job["state"]["nextRunAtMs"] for job in jobs.values()} == {ms(NOON + HOUR)}
    assert (jobs["skip"]["state"]["lastStatus"], jobs["once"]["state"]["lastStatus"]) == ("skipped", "ok")


async def test_what_was_to_run_once_and_is_over_a_day_late_is_said_and_kept(place: Place) -> None:
    place.write(
        hourly("late")
        | {"schedule": {"kind": "at", "atMs": ms(NOON - DAY - MINUTE)}, "deleteAfterRun": True},
        hourly("now") | {"schedule": {"kind": "at", "atMs": ms(NOON - HOUR)}, "deleteAfterRun": True},
    )

    async with place.running():
        await place.count(1)
        await place.noted(lambda jobs: "now" not in jobs and jobs["late"].get("enabled") is False)

    assert place.slots == ["now@01T11:00:00Z"]
    state = place.on_disk()["late"]["state"]
    assert state["lastStatus"] == "skipped"
    assert "missed" in state["lastError"]


async def test_a_clock_that_is_set_back_runs_no_slot_again(place: Place) -> None:
    place.write(hourly())

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        await place.time.to(NOON - 2 * HOUR)
        await place.edit(jobs(*[row | {"name": "edited"} for row in place.on_disk().values()]))
        await place.time.to(NOON + HOUR)
        await place.time.to(NOON + 2 * HOUR)
        await place.count(2)

    assert place.slots == ["a@01T13:00:00Z", "a@01T14:00:00Z"]


async def test_a_clock_that_was_wrong_by_months_stops_no_job(place: Place) -> None:
    place.write(hourly())
    place.time.now = NOON + 90 * DAY

    async with place.running():
        await place.time.to(NOON + 90 * DAY + HOUR)
        await place.count(1)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")
        await place.taken_over()
        await place.time.to(NOON)
        await place.time.to(NOON + HOUR)
        await place.count(2)

    assert place.slots[1] == "a@01T13:00:00Z"


async def test_a_clock_that_is_mended_while_a_run_is_noted_stops_no_job(place: Place) -> None:
    """What the note knew of the next slots was reckoned by the wrong clock."""
    half_past = {"kind": "cron", "expr": "30 * * * *", "tz": "UTC"}
    place.write(hourly("a"), hourly("b") | {"schedule": half_past})
    place.time.now = NOON + 90 * DAY + 45 * MINUTE

    async with place.running():
        await place.noted(lambda jobs: all(job["state"].get("nextRunAtMs") for job in jobs.values()))
        await place.taken_over()
        place.time.free.clear()
        await place.time.to(NOON + 90 * DAY + HOUR)
        await place.count(1)
        await asyncio.wait_for(place.time.kept.wait(), PATIENCE_S)
        await place.time.to(NOON)
        place.time.free.set()
        await place.taken_over()
        await place.time.to(NOON + HOUR)
        await place.count(3)

    assert place.slots[1:] == ["b@01T12:30:00Z", "a@01T13:00:00Z"]


async def test_a_clock_that_is_mended_while_a_letter_is_put_stops_no_job(place: Place) -> None:
    place.write(hourly())
    place.time.now = NOON + 90 * DAY
    durable, begun = asyncio.Event(), asyncio.Event()

    async def hold(_: Inbound) -> None:
        begun.set()
        await durable.wait()

    place.before_put = hold
    async with place.running():
        await place.time.to(NOON + 90 * DAY + HOUR)
        await begun.wait()
        await place.time.to(NOON)
        durable.set()
        await place.count(1)
        await place.time.to(NOON + HOUR)
        await place.count(2)

    assert place.slots[1] == "a@01T13:00:00Z"


# -- edits ---------------------------------------------------------------------------------------------


async def test_edits_are_picked_up_within_a_second(place: Place) -> None:
    """Added, changed, switched off and removed by hand."""
    second = timedelta(seconds=1)
    place.write(every(5, "off"), every(5, "gone"), hourly("changed"))

    async with place.running():
        await place.noted(lambda jobs: all(job["state"].get("nextRunAtMs") for job in jobs.values()))
        await place.time.to(NOON + 3 * second)
        await place.edit(jobs(every(5, "off", enabled=False), every(5, "changed"), every(5, "new")))
        await place.time.to(NOON + 10 * second)
        await place.count(4)
        await place.time.to(NOON + 14 * second)

    assert sorted(place.slots) == [
        "changed@01T12:00:05Z",
        "changed@01T12:00:10Z",
        "new@01T12:00:05Z",
        "new@01T12:00:10Z",
    ]


async def test_an_edit_of_the_time_of_day_runs_nothing_that_is_past(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))

    async with place.running():
        await place.time.to(NOON + 30 * MINUTE)
        edited = {"schedule": {"kind": "cron", "expr": "15 * * * *", "tz": "UTC"}}
        await place.edit(jobs(hourly(nextRunAtMs=ms(NOON + HOUR)) | edited))
        await place.time.to(NOON + HOUR + 15 * MINUTE)
        await place.count(1)

    assert place.slots == ["a@01T13:15:00Z"]


async def test_the_next_slot_stands_in_the_file_before_it_comes(place: Place) -> None:
    """So that the next scheduler knows where this one stood, and nanobot when it is due."""
    place.write(hourly("a"), hourly("off", nextRunAtMs=5) | {"enabled": False})

    async with place.running():
        await place.noted(lambda jobs: jobs["a"]["state"].get("nextRunAtMs") == ms(NOON + HOUR))

    assert place.on_disk()["off"]["state"]["nextRunAtMs"] is None


async def test_the_last_good_jobs_run_on_while_the_file_is_broken(place: Place) -> None:
    """The broken file is not touched; once it is mended, what ran meanwhile is noted."""
    place.write(hourly("a", nextRunAtMs=ms(NOON + HOUR)), hourly("b", nextRunAtMs=ms(NOON + HOUR)))
    good = place.file.path.read_text()

    async with place.running():
        await place.time.to(NOON + MINUTE)
        await place.edit(good[: len(good) // 2])
        await place.time.to(NOON + HOUR)
        assert sorted(await place.count(2)) == ["a@01T13:00:00Z", "b@01T13:00:00Z"]
        await place.time.to(NOON + HOUR + MINUTE)
        assert place.file.path.read_text() == good[: len(good) // 2]

        await place.edit(good)
        await place.time.to(NOON + HOUR + 2 * MINUTE)
        await place.noted(lambda jobs: all(job["state"].get("lastStatus") == "ok" for job in jobs.values()))

    assert len(place.put) == 2
    assert list(place.workspace.glob("cron/*corrupt*")) == []


async def test_from_a_broken_file_the_jobs_that_stand_whole_run(place: Place) -> None:
    place.write(hourly("a"), hourly("b"))
    text = place.file.path.read_text()
    place.text(text[: text.rindex("hello")])

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)

    assert place.slots == ["a@01T13:00:00Z"]


async def test_a_bad_job_stops_no_other(place: Place) -> None:
    place.write(hourly("a"), hourly("bad") | {"schedule": {"kind": "cron", "expr": "* * * * * *"}})

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")

    assert "bad" in place.on_disk()


# -- several -------------------------------------------------------------------------------------------


async def test_one_of_two_runs_the_clock_and_the_other_takes_over(place: Place) -> None:
    place.write(hourly())
    other = Place(place.workspace)
    other.time.now = NOON + HOUR

    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(place.running())
        await second.enter_async_context(other.running(wait=False))
        await place.time.to(NOON + HOUR)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")
        assert not other.time.waited
        assert other.pulse.up

        await first.aclose()
        await other.time.idle()
        await other.time.to(NOON + 2 * HOUR)
        await other.count(1)

    assert (place.slots, other.slots) == (["a@01T13:00:00Z"], ["a@01T14:00:00Z"])


async def test_schedulers_that_do_not_know_of_each_other_put_the_same_ids(place: Place) -> None:
    """So that each slot runs once even where locks do not hold, as on some network file systems."""
    other = Place(place.workspace / "other")
    other.workspace.mkdir()
    other.time.now = NOON + timedelta(seconds=3.3)
    for one in (place, other):
        one.write(every(7), hourly("b"))
        async with one.running():
            await one.time.to(NOON + timedelta(seconds=14))
            await one.count(2)

    assert place.slots == other.slots == ["a@01T12:00:07Z", "a@01T12:00:14Z"]


VICTIM = """
import asyncio, os, sys
from datetime import UTC, datetime
from pathlib import Path
from channels.base import Pulse
from channels.cron import build

async def put(inbound):
    os.write(log, f"{inbound.id}\\n".encode())
    os.fdatasync(log)

workspace = Path(sys.argv[1])
log = os.open(workspace / "put.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
clock = lambda: datetime.now(UTC)
asyncio.run(build(workspace / "state", workspace, pulse=Pulse(), zone=UTC, clock=clock, put=put).run())
"""


def test_kill_9_loses_no_slot(place: Place) -> None:
    """Whatever the instant: every slot is put, and what is put twice has the same id."""
    now = datetime.now(UTC)
    names = [
        place.file.add(
            new_row(Every(1_000, now), "m", at=now + n * timedelta(milliseconds=50), policy="all")
        ).id
        for n in range(20)
    ]
    log = place.workspace / "put.log"
    log.touch()

    def slots(name: str) -> list[datetime]:
        lines = [line for line in log.read_text().splitlines() if line.startswith(f"cron:{name}@")]
        return sorted({datetime.fromisoformat(line.partition("@")[2]) for line in lines})

    for kill in range(4):
        before = len(log.read_bytes().splitlines())
        command = [sys.executable, "-c", VICTIM, str(place.workspace)]
        with subprocess.Popen(command, cwd=ROOT) as victim:
            while len(log.read_bytes().splitlines()) < before + 15 + 7 * kill:
                assert victim.poll() is None
            while kill == 3 and min(len(slots(name)) for name in names) < 5:
                assert victim.poll() is None
            victim.send_signal(signal.SIGKILL)

    for name in names:
        assert {later - earlier for earlier, later in pairwise(slots(name))} == {timedelta(seconds=1)}


# -- by hand -------------------------------------------------------------------------------------------


async def test_a_run_by_hand_is_a_letter_of_its_own(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)) | {"enabled": False})

    said = [await run_now(place.file, "a", place.take) for _ in range(2)]

    assert [inbound.id for inbound in place.put] == [one["id"] for one in said]
    assert len({inbound.id for inbound in place.put}) == 2
    assert all(inbound.id.startswith("cron:a@run:") for inbound in place.put)
    state = place.on_disk()["a"]["state"]
    assert (state["lastStatus"], state["nextRunAtMs"]) == ("ok", ms(NOON + HOUR))


async def test_what_nanobot_does_for_itself_is_not_run_by_hand(place: Place) -> None:
    place.write(hourly() | {"payload": {"kind": "system_event"}})

    with pytest.raises(BadJob):
        await run_now(place.file, "a", place.take)

    assert place.put == []
