"""When facts are to be drawn from which sessions: one timer each, a file in ``state/jobs/`` besides.

A message does not set its timer back: when the time has come the transcript says whether people still
write, and the timer is set to then. So a stretch of activity costs one file, whoever runs its turns.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from durable import first_of
from session.background.job_files import BackgroundJob, JobFiles
from session.disk.threads import start_thread
from session.errors import SessionError
from session.memory.fact_extraction import FactExtraction

log = structlog.get_logger("jobs")


class FactTimers:
    """Hands over each extraction when its time has come.

    Args:
        files: where timers are kept that this process may not live to see run out.
        idle_s: how long a session has to be idle.
        clock: the time now, aware.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        files: JobFiles,
        *,
        idle_s: float,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        self._files = files
        self._idle = timedelta(seconds=idle_s)
        self._clock = clock
        self._sleep = sleep
        self._at: dict[BackgroundJob, datetime] = {}
        self._order: list[tuple[datetime, str, str, BackgroundJob]] = []
        self._unkept: dict[BackgroundJob, datetime] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._at)

    def begin(self, key: str, session_id: str) -> None:
        """See that a timer of this session runs, and that there is a file of it; at once."""
        job = BackgroundJob(key, session_id, "facts")
        self.set(job, self._at.get(job) or self._clock() + self._idle)

    def set(self, job: BackgroundJob, at: datetime) -> None:
        """Let a timer run out at ``at``; its file is there soon afterwards."""
        self._unkept[job] = at
        self.take_over(job, at)

    def take_over(self, job: BackgroundJob, at: datetime) -> None:
        """Let the timer of a file run out at ``at``; one that runs already stays as it is."""
        if job not in self._at:
            self._at[job] = at
            heapq.heappush(self._order, (at, job.key, str(job.session_id), job))
        self._changed.set()

    async def recover(self, facts: FactExtraction) -> None:
        """Begin the timers that a killed process did not live to write down.

        Where the folder cannot be read, its sessions are looked at after their next turns.
        """
        try:
            neglected = await facts.neglected({str(job.session_id) for job in self._at})
        except (SessionError, OSError) as error:
            log.warning("facts.not_looked_for", error=str(error))
            return
        for key, session_id, at in neglected:
            self.set(BackgroundJob(key, session_id, "facts"), at)

    async def run(self, put: Callable[[BackgroundJob], None]) -> None:
        """Hand over what has run out to ``put``, and write the files, until cancelled."""
        while True:
            self._changed.clear()
            await self.keep()
            now = self._clock()
            while self._order and self._order[0][0] <= now:
                *_, job = heapq.heappop(self._order)
                del self._at[job]
                put(job)
            waits: list[Coroutine[Any, Any, object]] = [self._changed.wait()]
            if self._order:
                waits.append(self._sleep((self._order[0][0] - now).total_seconds()))
            await first_of(*waits)

    async def keep(self) -> None:
        """Write the files that are not there yet."""
        unkept, self._unkept = self._unkept, {}
        if not unkept:
            return

        def write() -> None:
            for job, at in unkept.items():
                self._files.keep_new(replace(job, due=at))

        try:
            await start_thread(write, name="job")
        except (SessionError, OSError) as error:
            # The timer still runs here; the next turn tries the file again.
            log.warning("jobs.unkept", error=str(error))
