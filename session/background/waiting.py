"""The jobs that are known, in the order in which they may begin: no step looks at all that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from heapq import heappop, heappush

from session.background.due import Calm, Due
from session.background.job_files import BackgroundJob

# When it may begin at the earliest, and a number that decides between equals: that of its arrival.
Entry = tuple[datetime, int, BackgroundJob, Due]


class Waiting:
    """Holds jobs from when they are asked for until they are done, and says which may begin.

    A job that waits is in one of three places: among those that are not due, ordered by when they will be; in
    the line of those that are, ordered by until when they give way to turns; or behind a job that writes to
    the same scope. When that one ends the first behind it goes back into the line, and the others follow as
    each before them ends.
    """

    def __init__(self, calm: Calm) -> None:
        self._calm = calm
        self._due: dict[BackgroundJob, Due] = {}
        self._arrived = 0
        self._later: list[Entry] = []
        self._line: list[Entry] = []
        self._behind: dict[str, deque[Entry]] = {}
        # What runs, with the scope that was known of it when it began.
        self._running: dict[BackgroundJob, str] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, job: object) -> bool:
        return job in self._due

    def __getitem__(self, job: BackgroundJob) -> Due:
        return self._due[job]

    def __iter__(self) -> Iterator[BackgroundJob]:
        return iter(self._due)

    def running(self, job: BackgroundJob) -> bool:
        """Say whether a job runs."""
        return job in self._running

    def running_count(self) -> int:
        """Return how many jobs run."""
        return len(self._running)

    def idle(self) -> Iterator[tuple[BackgroundJob, Due]]:
        """Return all that do not run, by when they were asked for."""
        return ((job, due) for job, due in self._due.items() if job not in self._running)

    def busy(self, *, but: BackgroundJob | None = None) -> set[str]:
        """Name the scopes in which jobs run, as far as they were looked up."""
        scopes = (self._due[job].scope for job in self._running if job != but)
        return {scope for scope in scopes if scope}

    def put(self, job: BackgroundJob, due: Due) -> None:
        """Let a job wait that is not known."""
        self._arrived += 1
        self._due[job], due.arrival = due, self._arrived
        self._enter(job, due)

    def forget(self, job: BackgroundJob) -> None:
        """Let go of a job that waits."""
        # Its entry is left where it is and is passed over there.
        self._release({self._due.pop(job).scope})

    def take(self, now: datetime, most: int) -> list[BackgroundJob]:
        """Return up to ``most`` jobs that may begin, of which no two write to one scope; they run now."""
        taken: list[BackgroundJob] = []
        busy = self.busy()
        while len(taken) < most and (entry := self._first(now)) is not None:
            heappop(self._line)
            *_, job, due = entry
            if due.scope in busy:
                self._behind.setdefault(due.scope, deque()).append(entry)
                continue
            taken.append(job)
            self._running[job] = due.scope
            busy |= {due.scope} - {""}
        return taken

    def any_ready(self, now: datetime) -> bool:
        """Say whether one may begin, if there is a place for it and nothing writes to its scope."""
        return self._first(now) is not None

    def next_start(self, now: datetime) -> datetime | None:
        """Return when the clock lets the next one begin, for whoever has taken what may begin already.

        None: none waits for the clock, or one that may begin waits for a place; then so do all others.
        """
        if self.any_ready(now):
            return None
        times = [self._later[0][0]] if self._later else []
        if self._line:
            times.append(self._calm.start_of(self._line[0][3]))
        return min(times, default=None)

    def done(self, job: BackgroundJob) -> None:
        """Let go of a job that ran."""
        self._release({self._running.pop(job), self._due.pop(job).scope})

    def back(self, job: BackgroundJob) -> None:
        """Let a job that ran wait again, until its ``at``."""
        due = self._due[job]
        self._enter(job, due)
        self._release({self._running.pop(job), due.scope})

    def _enter(self, job: BackgroundJob, due: Due) -> None:
        heappush(self._later, (due.at, due.arrival, job, due))

    def _move(self, now: datetime) -> None:
        """Bring what has become due into the line, and what was let go of away from the two tops."""
        while self._later and (not self._waits(self._later[0]) or self._later[0][0] <= now):
            self._into_line(heappop(self._later))
        while self._line and not self._waits(self._line[0]):
            heappop(self._line)

    def _into_line(self, entry: Entry) -> None:
        if self._waits(entry):
            _, arrival, job, due = entry
            heappush(self._line, (due.latest, arrival, job, due))

    def _waits(self, entry: Entry) -> bool:
        *_, job, due = entry
        return self._due.get(job) is due

    def _first(self, now: datetime) -> Entry | None:
        """Return the first in the line if it may begin: none behind it may where it may not."""
        self._move(now)
        return self._line[0] if self._line and self._calm.start_of(self._line[0][3]) <= now else None

    def _release(self, scopes: set[str]) -> None:
        """Bring the first of those that waited for a scope back into the line, where nothing runs in it."""
        waited_for = scopes & self._behind.keys()
        for scope in waited_for - self.busy() if waited_for else ():
            behind = self._behind[scope]
            while behind:
                entry = behind.popleft()
                if self._waits(entry):
                    self._into_line(entry)
                    break
            if not behind:
                del self._behind[scope]
