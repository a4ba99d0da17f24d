"""Background work that survives a restart: consolidation after turns, and of sessions that have ended.

What follows a turn needs no record: it is due again after the next one. An ended session is due once, so its
job is a file in ``state/jobs/``, there before ``/new`` is answered, gone when memory holds the whole session.
With a model that cannot do it (``echo``) the files wait until one is configured that can.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from session.disk import private_folder, sync_folder
from session.errors import ModelAway, NewerFormat, NotNow, SessionError, StoreError
from session.hop import start_thread
from session.key import mark_of
from session.line import is_ulid
from session.memory import Memory
from session.notes import Notes
from session.state import read_state, write_state
from session.view import View

log = structlog.get_logger("jobs")

AT_ONCE = 4  # consolidations side by side; those of one scope go one after the other
LOOK_S = 300.0  # how often to look for jobs that another process left
FIRST_WAIT_S, LONGEST_WAIT_S = 15.0, 600.0


@dataclass(frozen=True, slots=True)
class Job:
    """A consolidation to do: of an ended session by its ULID, or of a key's active one."""

    key: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was done for one key at once; sizes are those of its scope's two files."""

    messages: int
    raw: int
    calls: int
    memory_bytes_before: int
    memory_bytes: int
    history_bytes_before: int
    history_bytes: int


@dataclass(slots=True)
class _Due:
    at: datetime
    tries: int = 0
    reason: str = ""


class Background:
    """Does the jobs, each once over all processes, and keeps those that cannot be done yet.

    Args:
        memory: does the work.
        state: the folder ``state/`` of the workspace.
        clock: the time now, aware.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        state: Path,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._memory = memory
        self._folder = state / "jobs"
        self._clock = clock
        self._sleep = sleep
        self._due: dict[Job, _Due] = {}
        self._running: set[Job] = set()
        self._changed = asyncio.Event()
        self._away_until: datetime | None = None
        self._away_tries = 0
        self._last_error = ""

    def turn_ended(self, session: View) -> None:
        """See whether enough messages wait; a key that is due already is not put in twice."""
        if len(session) - session.last_consolidated >= self._memory.rules.window:
            self._put(Job(session.key))

    async def ended(self, session: View) -> bool:
        """Make the consolidation of the session before this one durable; doing it twice does no harm.

        Returns:
            Whether there was one.

        Raises:
            StoreError: it could not be made durable.
        """
        previous = session.metadata.get("previous_session")
        return is_ulid(previous) and await self.left(session.key, str(previous))

    async def left(self, key: str, session_id: str) -> bool:
        """Make the consolidation of an ended session durable, as ``ended`` does, by its ULID.

        Raises:
            StoreError: it could not be made durable.
        """
        job = Job(key, session_id)
        stretch = await self._memory.stretches.load(job.key, job.session_id)
        if stretch is None or not stretch.ended:
            return False
        if stretch.lines:
            content = {"kind": "consolidate", "key": job.key, "session": job.session_id}
            await start_thread(lambda: write_state(self._path(job), content), name="job")
            self._put(job)
        return True

    async def run(self) -> None:
        """Do jobs until cancelled, those that an earlier process left among them.

        Raises:
            NewerFormat: a newer version wrote the budget or a job.
        """
        try:
            await self._memory.budget.load()
            await asyncio.to_thread(self._left)
        except NewerFormat:
            raise
        except (SessionError, OSError) as error:
            log.warning("jobs.unread", error=str(error))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_around(), name="jobs left behind")
            while True:
                self._changed.clear()
                for job in self._ready():
                    self._running.add(job)
                    group.create_task(self._do(job), name="consolidation")
                await self._next_change()

    async def at_once(self, key: str) -> Report:
        """Do what there is to do for a key, for a person who waits: nothing is put off.

        Raises:
            ModelAway: the model cannot be reached.
            NotNow: its answer was of no use, or another process works on this memory.
            StoreError: the disk refused.
        """
        notes = Notes((await self._memory.scope_of(key)).memory)
        before = await asyncio.to_thread(_sizes, notes)
        ended = [job for job in await asyncio.to_thread(self._left) if job.key == key]
        messages = raw = calls = 0
        for job in [*ended, Job(key)]:
            done = await self._memory.consolidate(key, session_id=job.session_id, asked=True)
            if job.session_id is not None:
                await start_thread(partial(self._strike, job), name="job")
            messages, raw, calls = messages + done.messages, raw + done.raw, calls + done.calls
        after = await asyncio.to_thread(_sizes, notes)
        return Report(messages, raw, calls, before[0], after[0], before[1], after[1])

    def shown(self) -> dict[str, Any]:
        """Return what ``status`` shows."""
        waits = sorted((due.at, due.reason) for job, due in self._due.items() if job not in self._running)
        now = self._clock()
        return {
            "waiting": len(waits),
            "running": len(self._running),
            "next_at": waits[0][0].isoformat() if waits and waits[0][0] > now else None,
            "reasons": sorted({reason for _, reason in waits if reason}),
            "last_error": self._last_error,
            "consolidated": dict(self._memory.totals),
            "budget": self._memory.budget.shown(),
        }

    # -- choosing ----------------------------------------------------------------------------------------

    def _put(self, job: Job) -> None:
        if job not in self._due:
            self._due[job] = _Due(self._clock())
            self._changed.set()

    def _ready(self) -> list[Job]:
        now = self._clock()
        if self._away_until is not None and self._away_until > now:
            return []
        room = AT_ONCE if self._away_until is None else 1  # after an outage one goes ahead
        waiting = [job for job, due in self._due.items() if due.at <= now and job not in self._running]
        return waiting[: max(room - len(self._running), 0)]

    async def _next_change(self) -> None:
        """Wait until something was put in or has ended, or the next one is due."""
        now = self._clock()
        idle = [due.at for job, due in self._due.items() if job not in self._running]
        times = [max(at, self._away_until or at) for at in idle]
        later = [at for at in times if at > now]
        waits: list[asyncio.Task[Any]] = [asyncio.ensure_future(self._changed.wait())]
        if later:
            waits.append(asyncio.ensure_future(self._sleep((min(later) - now).total_seconds())))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _look_around(self) -> None:
        while True:
            await self._look_once()
            await self._sleep(LOOK_S)

    async def _look_once(self) -> None:
        try:
            for job in await asyncio.to_thread(self._left):
                self._put(job)
        except (SessionError, OSError) as error:
            log.warning("jobs.unread", error=str(error))

    # -- doing -------------------------------------------------------------------------------------------

    async def _do(self, job: Job) -> None:
        """Do one job; what cannot be done now is put off, and nothing that it raises ends the others."""
        due = self._due[job]
        try:
            await self._memory.consolidate(job.key, session_id=job.session_id)
            if job.session_id is not None:
                await start_thread(lambda: self._strike(job), name="job")
        except NotNow as error:
            self._put_off(job, due, error.until, error.reason, error)
        except ModelAway as error:
            self._away(error)
            self._put_off(job, due, self._clock(), "away", error)
        except (SessionError, OSError) as error:
            self._put_off(job, due, self._after(due.tries), "error", error)
        except Exception as error:  # one job ends here
            log.exception("job.crashed", key=job.key)
            self._put_off(job, due, self._after(due.tries), "error", error)
        else:
            self._away_until, self._away_tries, self._last_error = None, 0, ""
            del self._due[job]
        finally:
            self._running.discard(job)
            self._changed.set()

    def _put_off(self, job: Job, due: _Due, until: datetime, reason: str, error: Exception) -> None:
        due.at, due.tries = until, due.tries + 1
        if reason != due.reason:
            log.warning("job.waiting", key=job.key, reason=reason, until=until.isoformat(), error=str(error))
        due.reason = reason
        self._last_error = str(error)

    def _away(self, error: ModelAway) -> None:
        """Let all jobs wait for the model; the one that is tried next shows whether it is back."""
        wait = self._wait_s(self._away_tries)
        self._away_tries += 1
        self._away_until = self._clock() + timedelta(seconds=max(wait, error.after_s or 0.0))

    def _after(self, tries: int) -> datetime:
        return self._clock() + timedelta(seconds=self._wait_s(tries))

    def _wait_s(self, tries: int) -> float:
        return min(FIRST_WAIT_S * 2.0 ** min(tries, 16), LONGEST_WAIT_S)

    # -- the files ---------------------------------------------------------------------------------------

    def _path(self, job: Job) -> Path:
        return self._folder / file_name(str(job.session_id), job.key)

    def _left(self) -> list[Job]:
        """Read the jobs on disk, the oldest session first."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                content = read_state(path)
            except NewerFormat:
                raise
            except StoreError as error:
                log.warning("job.unreadable", file=path.name, error=str(error))
                continue
            key, session_id = content.get("key"), content.get("session")
            if content.get("kind") == "consolidate" and isinstance(key, str) and is_ulid(session_id):
                found.append(Job(key, str(session_id)))
        return found

    def _strike(self, job: Job) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(job).unlink()
            private_folder(self._folder)
            sync_folder(self._folder)


def file_name(session_id: str, key: str) -> str:
    """Name the file of a job in ``state/jobs/``."""
    return f"{session_id}-{mark_of(key)}.json"


def move_jobs(state: Path, old: str, new: str) -> None:
    """Give the jobs of one key to another; blocks, for threads. Done again after a crash it ends the same.

    Raises:
        NewerFormat, StoreError: call it again.
    """
    for path in sorted((state / "jobs").glob("*.json")):
        content = read_state(path)
        if content.get("key") == old and is_ulid(content.get("session")):
            write_state(path.with_name(file_name(str(content["session"]), new)), {**content, "key": new})
            path.unlink(missing_ok=True)


def _sizes(notes: Notes) -> tuple[int, int]:
    return len(notes.memory()), len(notes.history())
