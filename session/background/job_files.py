"""The durable jobs in ``state/jobs/``: a file each, there before anybody relies on it, gone when done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import structlog

import durable
from durable import make_folder, sweep, sync_folder
from session.disk.layout import seen
from session.disk.state import read_state, write_state
from session.errors import NewerFormat, StoreError
from session.transcript.key import mark_of
from session.transcript.line import is_ulid, read_time

log = structlog.get_logger("jobs")

Kind = Literal["summary", "consolidate", "name", "facts"]
KINDS: tuple[Kind, ...] = ("summary", "consolidate", "name", "facts")
# Between a look at a file and its removal nobody writes it; those of others are written meanwhile.
LOCKS = 64


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """Something to do for a session: of an ended one by its ULID, or of a key's active one (None).

    ``consolidate`` moves it into memory, ``summary`` writes what an ended one was about, and ``name`` names
    it by its first exchange. ``facts`` draws facts from a session, ended or not, not before ``due`` (aware).
    """

    key: str
    session_id: str | None = None
    kind: Kind = "consolidate"
    due: datetime | None = field(default=None, compare=False, repr=False)


class JobFiles:
    """Keeps the jobs that a process may not live to do; blocks, for threads."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "jobs"
        self._locks = [threading.Lock() for _ in range(LOCKS)]

    def keep(self, job: BackgroundJob) -> None:
        """Make a job durable; doing it twice does no harm.

        Raises:
            StoreError: the disk refused.
        """
        content = {"kind": job.kind, "key": job.key, "session": job.session_id}
        if job.due is not None:
            content["due"] = job.due.isoformat()
        with self._lock_of(job):
            write_state(self._path(job), content)

    def keep_new(self, job: BackgroundJob) -> None:
        """Make a job durable of which there is no file; as ``keep``."""
        if not self._path(job).exists():
            self.keep(job)

    def watch(self, job: BackgroundJob) -> Callable[[], bool]:
        """Return what says whether the file of a job has been written since this moment.

        Raises:
            StoreError: the disk refused, now or then.
        """
        path = self._path(job)
        before = seen(path)
        return lambda: seen(path) != before

    def strike(self, job: BackgroundJob, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Forget a job that is done; one without a file is none.

        ``unless`` is asked when the file can no longer be written.
        """
        if job.session_id is None:
            return
        with self._lock_of(job), contextlib.suppress(FileNotFoundError):
            if unless():
                return
            self._path(job).unlink()
            make_folder(self._folder)
            sync_folder(self._folder)

    def left(self) -> list[BackgroundJob]:
        """Read the jobs on disk, the oldest session first, of each its summary first.

        What a killed process left half written there is removed.

        Raises:
            NewerFormat: a newer version wrote one.
        """
        sweep(self._folder)
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                content = read_state(path)
            except NewerFormat:
                raise
            except StoreError as error:
                log.warning("job.unreadable", file=path.name, error=str(error))
                continue
            key, session_id, kind = (content.get(name) for name in ("key", "session", "kind"))
            if isinstance(key, str) and is_ulid(session_id):
                due = _time(content.get("due"))
                found += [BackgroundJob(key, str(session_id), known, due) for known in KINDS if known == kind]
        return sorted(found, key=lambda job: (str(job.session_id), job.kind != "summary"))

    def holds(self, job: BackgroundJob) -> bool:
        """Say whether there is a file of a job.

        Raises:
            StoreError: the way to it is barred.
        """
        return seen(self._path(job)) is not None

    def awaits(self, key: str, session_id: str, *, for_s: float) -> bool:
        """Say whether an ended session has waited for its place in memory, and no longer than that.

        Raises:
            StoreError: the way to its job is barred.
        """
        written = seen(self._path(BackgroundJob(key, session_id)))
        return written is not None and durable.wall_s() - written[2] / 1e9 < for_s

    def _lock_of(self, job: BackgroundJob) -> threading.Lock:
        return self._locks[hash(self._path(job)) % LOCKS]

    def _path(self, job: BackgroundJob) -> Path:
        return self._folder / file_name(str(job.session_id), job.key, job.kind)


def _time(value: object) -> datetime | None:
    return read_time(value) if isinstance(value, str) else None


def file_name(session_id: str, key: str, kind: str = "consolidate") -> str:
    """Name the file of a job in ``state/jobs/``."""
    return f"{session_id}-{mark_of(key)}{'' if kind == 'consolidate' else f'.{kind}'}.json"


def job_of(name: str, key: str) -> BackgroundJob | None:
    """Read from the name of a file which job of a key it is; None where it is none of that key."""
    session_id, _, rest = name.removesuffix(".json").partition("-")
    kind = rest.partition(".")[2] or "consolidate"
    found = [BackgroundJob(key, session_id, known) for known in KINDS if known == kind]
    return found[0] if found and file_name(session_id, key, kind) == name else None


def move_jobs(state: Path, old: str, new: str) -> None:
    """Give the jobs of one key to another; blocks, for threads. Done again after a crash it ends the same.

    Raises:
        NewerFormat, StoreError: call it again.
    """
    for path in sorted((state / "jobs").glob("*.json")):
        content = read_state(path)
        if content.get("key") == old and is_ulid(content.get("session")):
            name = file_name(str(content["session"]), new, str(content.get("kind")))
            write_state(path.with_name(name), {**content, "key": new})
            path.unlink(missing_ok=True)
