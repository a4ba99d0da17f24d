"""The file of a delivery ledger, and the one thread that reads and writes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import durable
from gateway.errors import LedgerDown, NewerState
from gateway.outbound.ledger_log import LedgerLog, Note, notes_on
from gateway.outbound.ledger_rows import TABLES, VERSION, Rows, from_ms

T = TypeVar("T")
BUSY_S = 5.0


def forget(path: Path, keys: Collection[str], *, before: datetime | None) -> int:
    """Forget what was sent to these keys, ``before`` a time or ever; no byte of it stays. For threads.

    With a time, letters that are under way stay known: they may come again, and would be sent twice.

    Returns:
        How many letters, pieces and drafts were forgotten.

    Raises:
        LedgerDown: the disk refused, or another process is in the way; call it again.
    """
    database = durable.Database(path, _schema(), down=_refused(path), busy_s=BUSY_S)
    try:
        database.open()
        rows = Rows(database.file, durable.now)
        (count,) = database.commit([durable.Job(partial(rows.forget, keys, before=before))])
        if isinstance(count, Exception):
            raise count
        if count:
            database.compact()
    except (OSError, sqlite3.Error) as error:
        raise _refused(path)(error) from error
    finally:
        database.close()
    return int(str(count))


@dataclass(frozen=True, slots=True)
class SentRow:
    """What is noted of a letter or of one of its pieces; times are UTC.

    Args:
        piece: its number; None: the letter itself, all of which was accepted at ``at``.
        platform_id: what the platform calls it; empty: nobody knows whether it was accepted.
        unknown: how many sends of it were begun, the last at ``at``, whose outcome was not noted.
    """

    key: str
    id: str
    piece: int | None
    at: datetime
    platform_id: str = ""
    unknown: int = 0


def rows_of(path: Path, message_id: str) -> list[SentRow]:
    """List what was noted of everything that was sent for a message, in no order. For threads.

    Raises:
        NewerState: a newer version wrote the file.
        LedgerDown: it cannot be read.
    """
    database = durable.Database(path, _schema(), down=_refused(path), busy_s=BUSY_S)
    try:
        database.open()
        return _sent_rows(database.file, message_id)
    except (OSError, sqlite3.Error) as error:
        raise _refused(path)(error) from error
    finally:
        database.close()


def rows_noted(state: Path, message_id: str) -> list[SentRow]:
    """List as ``rows_of`` what other machines than this one noted as well; ``state`` is the workspace's."""
    with durable.in_memory(_schema()) as file:
        rows = Rows(file, durable.now)
        for note, at_ms in notes_on(state, message_id):
            rows.do(note, at_ms)
        return _sent_rows(file, message_id)


def _sent_rows(file: sqlite3.Connection, message_id: str) -> list[SentRow]:
    # What goes out for a message is named ``<its id>#…``, a proactive letter by its own id.
    bounds = (message_id, f"{message_id}#", f"{message_id}$")
    where = "WHERE id = ? OR (id >= ? AND id < ?)"
    found = [
        SentRow(key, id_, None, from_ms(ms))
        for key, id_, ms in file.execute(f"SELECT key, id, done_ms FROM letters {where}", bounds)  # noqa: S608
    ]
    query = f"SELECT key, id, piece, at_ms, platform_id, unknown FROM pieces {where}"  # noqa: S608
    for key, id_, piece, ms, platform_id, unknown in file.execute(query, bounds):
        found.append(SentRow(key, id_, piece, from_ms(ms), platform_id or "", unknown))
    return found


def _schema() -> durable.Schema:
    return durable.Schema(TABLES, VERSION, 16 * 2**20, newer=NewerState)


def _refused(path: Path) -> Callable[[Exception], LedgerDown]:
    return lambda error: LedgerDown(
        f"{path} cannot be written: {error}",
        hint=f"free disk space, or check the permissions of {path.parent}; a damaged file can be moved away",
    )


class LedgerFile:
    """The file of a ledger, in a thread of its own: whatever waits becomes one transaction with one fsync."""

    def __init__(self, path: Path, clock: Callable[[], datetime], log: LedgerLog | None = None) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        self._down = _refused(path)
        # What is noted of a letter is awaited before the next; of different letters it has no order.
        self._database = durable.Database(path, _schema(), down=self._down, busy_s=BUSY_S, retry_each=True)
        self._rows: Rows | None = None
        self._commits: durable.GroupCommit | None = None

    async def start(self) -> dict[str, str]:
        """Open the file and return the moved chats."""
        commits = durable.GroupCommit(self, name=f"ledger {self._path.stem}", closed=self._not_open)
        self._commits = commits
        try:
            return await commits.open(self._open)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Do what waits, then close the file; it happens whether or not anyone waits for it."""
        commits, self._commits = self._commits, None
        if commits is not None:
            await commits.close()

    async def ask(self, work: Callable[[Rows], T]) -> T:
        """Return the outcome of ``work`` once it is on disk; it is done even if the caller is cancelled."""
        if self._commits is None or self._rows is None:
            raise self._not_open()
        try:
            return await self._commits.ask(partial(work, self._rows))
        except LedgerDown:
            raise
        except Exception as error:
            raise self._down(error) from error

    def _open(self) -> dict[str, str]:
        try:
            self._database.open()
            rows = Rows(self._database.file, self._clock)
            first = [durable.Job(rows.prune)]
            if self._log is not None:
                first.append(durable.Job(partial(rows.merge, self._log)))
            for outcome in self._database.commit(first):
                if isinstance(outcome, Exception):
                    raise outcome
            if self._log is not None and self._log.writes:
                rows.notes = []
            self._rows = rows
            return rows.moves()
        except (OSError, sqlite3.Error) as error:
            raise self._down(error) from error

    def commit(self, jobs: Sequence[durable.Job]) -> list[object]:
        """Commit a batch, then tell the other machines of what it changed; only then is anything done."""
        rows, log = self._rows, self._log
        if rows is None or log is None or not log.writes:
            return self._database.commit(jobs)
        noted: dict[int, list[Note]] = {}
        outcomes = self._database.commit([_noting(job, rows, noted, at) for at, job in enumerate(jobs)])
        told = {at for at, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)}
        notes = [note for at, each in sorted(noted.items()) if at in told for note in each]
        if notes:
            try:
                log.append(notes, int(self._clock().timestamp() * 1000))
            except OSError as error:
                # It is noted here, and done again: a second time it says the same, or one doubt more.
                return [
                    self._down(error) if at in told and noted.get(at) else outcome
                    for at, outcome in enumerate(outcomes)
                ]
        return outcomes

    def close(self) -> None:
        """Close the files; ``stop`` has it done in their thread."""
        try:
            self._database.close()
        finally:
            if self._log is not None:
                self._log.close()

    def _not_open(self) -> LedgerDown:
        return LedgerDown(f"the send log {self._path.name} is not open")


def _noting(job: durable.Job, rows: Rows, noted: dict[int, list[Note]], at: int) -> durable.Job:
    """Have the notes of a job kept apart: where its batch is begun again, those of before are void."""

    def run() -> object:
        rows.notes = noted[at] = []
        return job.run()

    return durable.Job(run, job.writes)
