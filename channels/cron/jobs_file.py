"""``cron/jobs.json``: nanobot's file, read whatever became of it, changed under a lock, replaced whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Final

import durable
from channels import storage
from channels.cron import chat_jobs, nanobot_jobs
from channels.cron.job_state import after_failure, after_run, planned, switched
from channels.cron.jobs import Asker, BadJob, CronJob, Ran, Row, read_job, shown
from channels.cron.nanobot_jobs import Document, Fault, Left, Lost, merged
from channels.errors import ChannelError

# Inode, size, mtime_ns: another value means that somebody wrote.
Seen = tuple[int, int, int]
LOCK_WAIT_S: Final = 10.0


class NoJob(ChannelError):
    """There is no job of this id."""


class Damaged(ChannelError):
    """The file is not whole; what could not be read would be lost by a write."""


@dataclass(frozen=True, slots=True)
class Bad:
    """What stands in the file and cannot run: which (its id, else its position), why, and what would help."""

    id: str | None
    problem: str
    cure: str
    row: object = None

    def shown(self) -> Row:
        """Return it as it is listed: its fields, ``next_run_at`` null, and ``problem``."""
        fields = self.row if isinstance(self.row, dict) else {}
        problem = f"{self.problem}; {self.cure}" if self.cure else self.problem
        return {"id": self.id, **fields, "next_run_at": None, "problem": problem}


@dataclass(frozen=True, slots=True)
class Contents:
    """What the file held when it was looked at.

    Args:
        jobs: those that can run, by id, in the order of the file.
        bad: the others, and text that is no job at all.
        fault: why the file itself is not as it should be; nothing but a person's command writes it then.
        seen: which state of the file this is; None where there is none.
    """

    jobs: Mapping[str, CronJob] = field(default_factory=dict)
    bad: tuple[Bad, ...] = ()
    fault: Fault | None = None
    seen: Seen | None = None

    def rows(self, now: datetime) -> list[Row]:
        """List them, those that run next first, what cannot run last."""
        good = [shown(job, now) for job in self.jobs.values()]
        good.sort(key=lambda row: row["next_run_at"] or "~")
        fault = [] if self.fault is None else [Bad(None, self.fault.text, self.fault.cure)]
        return good + [bad.shown() for bad in (*fault, *self.bad)]


class CronFile:
    """The jobs of one workspace.

    Args:
        zone: of expressions that name none.
        clock: UTC; when something was changed.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        zone: tzinfo = UTC,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self.path = workspace / "cron" / "jobs.json"
        self._lock = workspace / "state" / "cron.lock"
        self._left = Left(workspace)
        self._zone = zone
        self._clock = clock
        # By id, so that a job is read again only where it changed.
        self._known: dict[str, CronJob] = {}
        # The copy of a damaged file that the last change made.
        self.kept: Path | None = None

    def seen(self) -> Seen | None:
        """Look at the file without reading it; None where there is none."""
        try:
            return _seen(self.path.stat())
        except OSError:
            return None

    def read(self) -> Contents:
        """Read it as far as it can be read; nothing is changed.

        Raises:
            ChannelError: it is there and cannot be opened.
        """
        return self._contents(*self._document())

    def every_row(self) -> list[Any]:
        """Return what stands in ``jobs``, sound or not, in its order. Raises as ``read``."""
        return self._document()[0].rows

    def left(self) -> bool:
        """Say whether another program left changes beside the file; any write takes them over."""
        return self._left.waits()

    # -- what a person changes ---------------------------------------------------------------------

    def add(self, row: Row) -> CronJob:
        """Add a job; on return it survives a power cut. A damaged file is copied first (``kept``).

        Raises:
            BadJob, BadSchedule: it could not run; nothing was written.
            ChannelError: the disk refused; nothing was written.
        """
        read_job(row, self._zone)

        def change(rows: list[Any]) -> list[Any]:
            return [*rows, row]

        return self._edit(change, by_hand=True).jobs[row["id"]]

    def remove(self, job_id: str) -> None:
        """Remove a job, even one that cannot run. Raises ``NoJob``, or as ``add``."""

        def change(rows: list[Any]) -> list[Any]:
            position = _position_of(rows, job_id)
            return rows[:position] + rows[position + 1 :]

        self._edit(change, by_hand=True)

    def remove_all(self, meant: Callable[[Any], bool]) -> int:
        """Remove every row that is ``meant``, whether it can run or not; return how many there were.

        Where there is none the file stays as it is, damaged or of a newer version. Raises as ``add``.
        """
        count = 0

        def change(rows: list[Any]) -> list[Any]:
            nonlocal count
            kept = [row for row in rows if not meant(row)]
            count = len(rows) - len(kept)
            return kept

        if any(map(meant, self.every_row())):
            self._edit(change, by_hand=True)
        return count

    def enable(self, job_id: str, enabled: bool = True) -> CronJob:
        """Switch a job on or off; what passed while it was off is not made up. Raises as ``remove``."""
        at = self._clock()

        def change(rows: list[Any]) -> list[Any]:
            position = _position_of(rows, job_id)
            schedule = read_job(rows[position], self._zone).schedule
            return [*rows[:position], switched(rows[position], schedule, enabled, at), *rows[position + 1 :]]

        return self._edit(change, by_hand=True).jobs[job_id]

    def job(self, job_id: str) -> CronJob:
        """Return a job that can run. Raises ``NoJob``, ``BadJob``, or as ``read``."""
        contents = self.read()
        if (found := contents.jobs.get(job_id)) is not None:
            return found
        for bad in contents.bad:
            if bad.id == job_id:
                raise BadJob(f"the job {job_id} cannot run: {bad.problem}", hint=bad.cure)
        raise _no_job(job_id)

    # -- what is changed in a chat -----------------------------------------------------------------

    def add_in_chat(self, row: Row) -> CronJob:
        """Add a job that somebody makes in a chat; one of this id that stands there already is returned.

        Raises:
            BadJob, BadSchedule: it could not run, or the chat has too many; nothing was written.
            Damaged, ChannelError: as ``note``.
        """
        read_job(row, self._zone)
        return self._edit(lambda rows: chat_jobs.added(rows, row), by_hand=False).jobs[row["id"]]

    def remove_in_chat(self, job_id: str, asker: Asker) -> None:
        """Remove a job of the chat in which it is asked.

        Raises:
            BadJob: the chat has none of this id, or whoever asks may not change it; nothing was written.
            Damaged, ChannelError: as ``note``.
        """

        def change(rows: list[Any]) -> list[Any]:
            found = [row for row in rows if isinstance(row, dict) and row.get("id") == job_id]
            return chat_jobs.removed(rows, job_id, asker, self._job(found[0]) if found else None)

        self._edit(change, by_hand=False)

    def move_chat(self, old: str, new: str) -> None:
        """Have the jobs of a chat answer under the key that it has now. Raises as ``note``."""
        if self.seen() is not None:
            self._edit(lambda rows: chat_jobs.moved(rows, old, new), by_hand=False)

    # -- what a scheduler notes --------------------------------------------------------------------

    def note(self, ran: Iterable[Ran] = (), plans: Mapping[str, int | None] | None = None) -> Contents:
        """Note what ran, and the next slots of others; jobs that are gone are passed over.

        Raises:
            Damaged: the file is not whole; nothing was written.
            ChannelError: the disk refused; nothing was written.
        """
        by_job: dict[str, list[Ran]] = {}
        for one in ran:
            by_job.setdefault(one.job_id, []).append(one)

        def change(rows: list[Any]) -> list[Any]:
            met: set[str] = set()
            found = []
            for row in rows:
                moved = self._moved(row, by_job, plans or {}, met)
                if moved is not None or row is None:
                    found.append(moved)
            return found

        return self._edit(change, by_hand=False)

    def ran(
        self, job_id: str, slot: datetime | None, status: Any, error: str | None = None, duration_ms: int = 0
    ) -> Contents:
        """Note one run; raises as ``note``."""
        return self.note([Ran(job_id, slot, status, self._clock(), error, duration_ms)])

    def failed(self, job_id: str, slot: datetime | None, error: str) -> Contents:
        """Note that a run's turn came to nothing; a job that is gone is passed over. Raises as ``note``."""

        def change(rows: list[Any]) -> list[Any]:
            return [
                after_failure(row, slot, error) if isinstance(row, dict) and row.get("id") == job_id else row
                for row in rows
            ]

        return self._edit(change, by_hand=False)

    def _moved(
        self, row: Any, by_job: Mapping[str, list[Ran]], plans: Mapping[str, int | None], met: set[str]
    ) -> Any | None:
        job_id = row.get("id") if isinstance(row, dict) else None
        if not isinstance(job_id, str) or job_id in met or not (job_id in by_job or job_id in plans):
            return row
        try:
            schedule = self._job(row).schedule
        except ChannelError:
            return row
        # Another one of the same id is a mistake, and stays as it is.
        met.add(job_id)
        if job_id in plans:
            row = planned(row, plans[job_id])
        for one in by_job.get(job_id, ()):
            row = after_run(row, schedule, one)
            if row is None:
                return None
        return row

    # -- reading and writing -----------------------------------------------------------------------

    def _bytes(self) -> tuple[bytes | None, Seen | None]:
        try:
            with self.path.open("rb") as file:
                seen = _seen(os.fstat(file.fileno()))
                return file.read(), seen
        except FileNotFoundError:
            return None, None
        except OSError as error:
            raise ChannelError(
                f"cron/jobs.json cannot be read: {error.strerror}", hint=f"check {self.path}"
            ) from error

    def _document(self) -> tuple[Document, Seen | None]:
        data, seen = self._bytes()
        document = nanobot_jobs.decode(data)
        left, unread = self._changes()
        rows = merged(document.rows, left) if left else document.rows
        return replace(document, rows=rows, lost=(*document.lost, *unread)), seen

    def _changes(self) -> tuple[bytes, tuple[Lost, ...]]:
        try:
            return self._left.read(), ()
        # The jobs are whole, and their times do not wait until a person has looked at this file.
        except ChannelError as error:
            return b"", (Lost(None, f"{error}, so its changes are not applied", error.hint),)

    def _job(self, row: Any) -> CronJob:
        known = (
            self._known.get(row["id"]) if isinstance(row, dict) and isinstance(row.get("id"), str) else None
        )
        if known is not None and (known.row is row or known.row == row):
            return known
        return read_job(row, self._zone)

    def _contents(self, document: Document, seen: Seen | None) -> Contents:
        jobs: dict[str, CronJob] = {}
        bad = [Bad(lost.id, lost.text, lost.cure) for lost in document.lost]
        for number, row in enumerate(document.rows, 1):
            try:
                job = self._job(row)
                if job.id in jobs:
                    raise BadJob("another job has this id", hint="give it another id")
            except ChannelError as error:
                job_id = row.get("id") if isinstance(row, dict) else None
                named = job_id if isinstance(job_id, str) else None
                bad.append(Bad(named, f"job {number}: {error}", error.hint, row))
            else:
                jobs[job.id] = job
        self._known = jobs
        return Contents(jobs, tuple(bad), document.fault, seen)

    def _edit(self, change: Callable[[list[Any]], list[Any]], *, by_hand: bool) -> Contents:
        """Read, change and replace the file under the lock; nothing is written where nothing changes."""
        self.kept = None
        with storage.locked(self._lock, wait_s=LOCK_WAIT_S):
            while (found := self._edit_once(change, by_hand)) is None:
                # Somebody who takes no lock wrote meanwhile: what he wrote counts.
                pass
        return found

    def _edit_once(self, change: Callable[[list[Any]], list[Any]], by_hand: bool) -> Contents | None:
        data, seen = self._bytes()
        document = nanobot_jobs.decode(data)
        if document.fault is not None and (document.fault.newer or not by_hand):
            raise Damaged(f"cron/jobs.json: {document.fault.text}", hint=document.fault.cure)
        left, unread = self._changes()
        document = replace(document, lost=(*document.lost, *unread))
        rows = change(merged(document.rows, left))
        if len(rows) == len(document.rows) and all(a is b for a, b in zip(rows, document.rows, strict=True)):
            self._left.done(left)
            return self._contents(document, seen)
        whole = Document({**document.top, "jobs": rows}, rows, document.plain, lost=unread)

        def check() -> None:
            if self.seen() != seen:
                raise _Changed

        try:
            if document.fault is not None and data and self.kept is None:
                self.kept = self._keep(data)
            written = durable.replace(self.path, nanobot_jobs.encode(whole), check=check)
        except _Changed:
            return None
        except OSError as error:
            raise ChannelError(
                f"cron/jobs.json cannot be written: {error.strerror}",
                hint=f"check {self.path.parent}; nothing was written",
            ) from error
        self._left.done(left)
        return self._contents(whole, _seen(written))

    def _keep(self, data: bytes) -> Path:
        copy = self.path.with_name(f"{self.path.name}.corrupt-{durable.new_id()}")
        durable.replace(copy, data)
        return copy


class _Changed(Exception):
    """Somebody who takes no lock wrote in this very moment."""


def _seen(found: os.stat_result) -> Seen:
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _position_of(rows: list[Any], job_id: str) -> int:
    for position, row in enumerate(rows):
        if isinstance(row, dict) and str(row.get("id")) == job_id:
            return position
    raise _no_job(job_id)


def _no_job(job_id: str) -> NoJob:
    return NoJob(f"there is no job {job_id}", hint="chat-gateway cron list")
