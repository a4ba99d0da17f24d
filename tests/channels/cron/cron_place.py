"""A scheduler of cron with a clock that stands until it is moved."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import durable
from channels.base import Pulse
from channels.cron.jobs_file import Contents, CronFile
from channels.cron.scheduler import CronScheduler
from channels.errors import ChannelError
from channels.message import Inbound, read_inbound
from tests.support import peers
from tests.support.clock import Clock
from tests.support.peers import Peer

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


PATIENCE_S = 60


@dataclass(eq=False)
class Wait:
    """One who waits for ``wake`` until ``at``; a test says by ``over`` that this is reached."""

    at: datetime
    wake: asyncio.Event
    notes: bool
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Time(Clock):
    """A clock that moves on once the scheduler waits again."""

    def __init__(self) -> None:
        super().__init__(NOON)
        # Whether the scheduler looked at it at least once.
        self.waited = False
        # Cleared, it keeps a thread that looked at it; ``kept`` says that such a thread is there.
        self.free = threading.Event()
        self.free.set()
        self.kept = asyncio.Event()
        self._waiting: list[Wait] = []
        self._changed = asyncio.Condition()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> datetime:
        now = self.now
        if threading.current_thread() is not threading.main_thread() and not self.free.is_set():
            self._loop.call_soon_threadsafe(self.kept.set)
            assert self.free.wait(PATIENCE_S)
        return now

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        task = asyncio.current_task()
        notes = task is not None and task.get_name() == "cron notes"
        entry = Wait(self.now + timedelta(seconds=seconds), event, notes)
        self._waiting.append(entry)
        self.waited = True
        async with self._changed:
            self._changed.notify_all()
        try:
            await durable.first_of(event.wait(), entry.over.wait())
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def idle(self) -> None:
        """Wait until the scheduler waits, and nothing has happened since that will wake it."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(
                lambda: any(not each.notes and not each.wake.is_set() for each in self._waiting)
            )

    async def to(self, instant: datetime) -> None:
        """Move on from one wait to the next, up to an instant; or be set back to it at once."""
        await self.idle()
        if instant < self.now:
            self.now = instant
            await self._wake(NOON + 1000 * DAY)
            return
        while self.now < instant:
            self.now = min([instant, *(each.at for each in self._waiting)])
            await self._wake(self.now)

    async def leap(self, instant: datetime) -> None:
        """Be at an instant at once, as after a sleep of the machine."""
        await self.idle()
        self.now = instant
        await self._wake(instant)

    def end_rests(self) -> None:
        """Let whoever writes the notes go on, as if its rest were over; it may have begun it a moment ago."""
        for entry in list(self._waiting):
            if entry.notes:
                self._waiting.remove(entry)
                entry.over.set()

    async def _wake(self, until: datetime) -> None:
        for entry in list(self._waiting):
            if entry.at <= until:
                self._waiting.remove(entry)
                entry.over.set()
        await self.idle()


class File(CronFile):
    """The file, which says when it was noted, and may refuse."""

    def __init__(self, workspace: Path, time: Time) -> None:
        super().__init__(workspace, clock=time)
        self._loop = asyncio.get_running_loop()
        self.noted = asyncio.Event()
        self.refuses = False
        # Cleared, it holds the next note up; ``held`` says that one is.
        self.free = threading.Event()
        self.free.set()
        self.held = asyncio.Event()

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
    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.state = workspace / "state"
        self.time = Time()
        self.file = File(workspace, self.time)
        self.access = asyncio.Lock()
        self.put: list[Inbound] = []
        self.changed = asyncio.Condition()
        self.before_put: Callable[[Inbound], Awaitable[None]] | None = None
        self.pulse = Pulse(self.time)

    async def take(self, inbound: Inbound) -> None:
        if self.before_put is not None:
            await self.before_put(inbound)
        assert read_inbound(inbound.to_bytes()) == (inbound, [])
        self.put.append(inbound)
        async with self.changed:
            self.changed.notify_all()

    @asynccontextmanager
    async def running(self, *, state: Path | None = None, wait: bool = True) -> AsyncIterator[CronScheduler]:
        clock = CronScheduler(
            self.file,
            state or self.state,
            pulse=self.pulse,
            clock=self.time,
            put=self.take,
            pause=self.time.pause,
            access=self.access,
        )
        self.task = task = asyncio.create_task(clock.run(), name="clock")
        try:
            if wait:
                await self.time.idle()
            yield clock
        finally:
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended

    async def hold_up_the_note(self, *, first: timedelta, then: timedelta) -> None:
        """Let a run be put at each of two times; the note of the first one is held up until ``file.free``."""
        await self.noted(lambda jobs: "nextRunAtMs" in jobs["a"]["state"])
        await self.taken_over()
        self.file.free.clear()
        await self.time.to(NOON + first)
        await asyncio.wait_for(self.file.held.wait(), PATIENCE_S)
        await self.time.to(NOON + then)
        await self.count(2)

    async def count(self, number: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: len(self.put) >= number)
        return self.slots

    async def noted(self, said: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
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
        async with self.access:
            self.text(text)

    async def taken_over(self) -> None:
        """Wait until what the clock is writing itself has been taken over, so that it looks again."""
        async with asyncio.timeout(PATIENCE_S), self.access:
            pass

    def on_disk(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in json.loads(self.file.path.read_text())["jobs"]}


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


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    """A job as a person writes it: what is needed and no more."""
    return {
        "id": job_id,
        "name": job_id,
        "schedule": {"kind": "every", "everyMs": 60_000},
        "payload": {"message": f"message of {job_id}"},
        **fields,
    }


def put(file: CronFile, content: object) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_bytes(data)
    return data


def on_disk(file: CronFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.path.read_bytes())
    return found


# -- real nanobots -------------------------------------------------------------------------------------


class Theirs:
    """One version of nanobot on one workspace."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer, self.workspace, self._home = peer, folder / "workspace", folder / "home"
        self.workspace.mkdir()
        self._home.mkdir()

    def do(self, do: str, **request: Any) -> Any:
        return peers.ask(self.peer, self._home, do=do, workspace=str(self.workspace), **request)
