"""The durable half of the embedded queue: rows in one SQLite file, changed batch by batch from one thread.

Two tables. ``letters`` is the log of what waits or is being worked on: ``row`` is the order, a row is removed
when its letter is settled. ``parked`` holds what was set aside. A batch is one transaction with one fsync
(WAL, ``synchronous=FULL``): what it reported done survives a power cut, what it did not is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import orjson

from gateway.errors import MailboxDown, MailboxError, NewerState, StateInUse
from gateway.mailbox import Parked, Post

T = TypeVar("T")
VERSION = 1
FILE = "queue.db"
LOCK = "queue.lock"

_SCHEMA = (
    """CREATE TABLE letters (
        row INTEGER PRIMARY KEY, box TEXT NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL,
        body BLOB NOT NULL, put_ms INTEGER NOT NULL)""",
    "CREATE UNIQUE INDEX letters_once ON letters (box, key, id) WHERE id <> ''",
    "CREATE INDEX letters_in_order ON letters (box, row)",
    """CREATE TABLE parked (
        row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, box TEXT NOT NULL, key TEXT,
        line TEXT NOT NULL, reason TEXT NOT NULL, origin TEXT NOT NULL, attempts INTEGER NOT NULL,
        parked_ms INTEGER NOT NULL, body BLOB NOT NULL)""",
    "CREATE INDEX parked_by_id ON parked (id)",
)
_PARKED = "id, box, key, reason, origin, attempts, parked_ms, body"
_OWN_FAULTS = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(ValueError, LookupError, OverflowError, TypeError),
)


class Row(NamedTuple):
    """A letter as it lies in the table."""

    row: int
    key: str
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of a batch: all of it is done, or none. ``writes`` is False where it only looks."""

    run: Callable[[Table], object]
    writes: bool = True


class _Refused(Exception):
    """The job at ``place`` of the batch failed for reasons of its own."""

    def __init__(self, place: int) -> None:
        self.place = place


class Table:
    """The file ``state/queue.db`` and the lock beside it. Every method runs in the writer's thread.

    ``at`` is called with the name of each instant of a commit (``begun``, ``written``, ``committed``) and
    of the end (``closing``), so that a test can end the process right there.
    """

    def __init__(self, state: Path, *, at: Callable[[str], None] | None = None) -> None:
        self._state = state
        self._at = at or (lambda _: None)
        self._lock: int | None = None
        self._file: sqlite3.Connection | None = None
        self.last_row = 0

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> dict[str, int]:
        """Lock the folder and open the file, which is made where there is none; return the letters by box.

        Raises:
            StateInUse: another process holds the folder.
            NewerState: a newer version wrote the file; it was not touched.
            MailboxError: the file or its folder cannot be used.
        """
        path = self._state / FILE
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _hold(self._state / LOCK)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            self._prepare(self._file)
            _sync_folder(self._state)
            return dict(self._file.execute("SELECT box, count(*) FROM letters GROUP BY box").fetchall())
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise _in_use(self._state, "") from error
            hint = f"free space, or check the rights of {self._state}; a damaged {FILE} may be moved away"
            raise MailboxError(f"the queue {path} cannot be opened: {error}", hint=hint) from error

    def _prepare(self, file: sqlite3.Connection) -> None:
        """Check the version, set the file up, and find the last row."""
        file.execute("PRAGMA locking_mode=EXCLUSIVE")  # one writer, and no shared memory file on a full disk
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            message = f"{self._state / FILE} has version {version}, this program knows {VERSION}"
            raise NewerState(message, hint="run the newer chat-gateway that wrote it")
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=FULL")
        file.execute(f"PRAGMA journal_size_limit={64 * 2**20}")
        file.execute("BEGIN IMMEDIATE")
        if version == 0:
            for statement in _SCHEMA:
                file.execute(statement)
            file.execute(f"PRAGMA user_version={VERSION}")
        file.execute("COMMIT")
        (self.last_row,) = file.execute("SELECT coalesce(max(row), 0) FROM letters").fetchone()

    def close(self) -> None:
        """Close the file, then release the folder. A second call does nothing."""
        file, self._file = self._file, None
        lock, self._lock = self._lock, None
        try:
            self._at("closing")
            if file is not None:
                file.close()
        finally:
            if lock is not None:
                os.close(lock)

    # ── the batch ─────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, jobs: Sequence[Job]) -> list[object]:
        """Run ``jobs`` in order in one transaction; return for each its result, or the exception that met it.

        A job that fails for reasons of its own takes no other with it. When the disk refuses, every job that
        writes gets ``MailboxDown``, and nothing of the batch is in the file.
        """
        outcomes: list[object] = [None] * len(jobs)
        places = list(range(len(jobs)))
        while places:
            try:
                self._run(jobs, places, outcomes)
            except _Refused as refused:
                self._roll_back()
                outcomes[refused.place] = refused.__cause__
                places.remove(refused.place)
            except sqlite3.Error as error:
                self._roll_back()
                self._make_room()
                for place in places:
                    outcomes[place] = self._after_failure(jobs[place], error)
                break
            else:
                break
        return outcomes

    def _run(self, jobs: Sequence[Job], places: Sequence[int], outcomes: list[object]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._at("begun")
        for place in places:
            try:
                outcomes[place] = jobs[place].run(self)
            except _OWN_FAULTS as error:
                raise _Refused(place) from error
        self._at("written")
        self._db.execute("COMMIT")
        self._at("committed")

    def _roll_back(self) -> None:
        """Undo the transaction, where the failure has not done so; a refusal shows at the next batch."""
        if self._db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _make_room(self) -> None:
        """Empty the write-ahead log where the disk lets us: there may be room for the next batch."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _after_failure(self, job: Job, error: sqlite3.Error) -> object:
        """Answer a reading job from what is committed, a writing one with the failure."""
        try:
            if not job.writes:
                return job.run(self)
        except sqlite3.Error as second:
            error = second
        down = MailboxDown(f"the queue could not be written: {error}", hint="is the disk full?")
        down.__cause__ = error
        return down

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._file is not None, "the table is not open"
        return self._file

    # ── letters ───────────────────────────────────────────────────────────────────────────────────────────

    def insert(self, post: Post, at: datetime) -> int | None:
        """Append ``post``; return its row, or None where the same one waits already."""
        self.last_row += 1
        values = (self.last_row, post.box, post.key, post.id, post.body, _to_ms(at))
        done = self._db.execute(
            "INSERT INTO letters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values
        )
        return self.last_row if done.rowcount else None

    def remove(self, row: int) -> None:
        """Remove a letter."""
        self._db.execute("DELETE FROM letters WHERE row = ?", (row,))

    def load(self, box: str, after: int, *, limit: int, max_bytes: int) -> tuple[list[Row], bool]:
        """Read the letters of ``box`` behind row ``after``, in order; and whether more may follow."""
        query = "SELECT row, key, id, body FROM letters WHERE box = ? AND row > ? ORDER BY row LIMIT ?"
        cursor = self._db.execute(query, (box, after, limit))
        rows: list[Row] = []
        for values in cursor:
            rows.append(Row(*values))
            max_bytes -= len(values[3])
            if max_bytes <= 0:
                cursor.close()
                return rows, True
        return rows, len(rows) == limit

    def oldest(self, box: str) -> datetime | None:
        """Tell when the first letter of ``box`` was put."""
        query = "SELECT put_ms FROM letters WHERE box = ? ORDER BY row LIMIT 1"
        found = self._db.execute(query, (box,)).fetchone()
        return _from_ms(found[0]) if found else None

    def touch(self) -> None:
        """Write something harmless, to learn whether the disk takes it again."""
        self._db.execute(f"PRAGMA user_version={VERSION}")

    # ── parked ────────────────────────────────────────────────────────────────────────────────────────────

    def park(self, parked: Parked, line: str) -> None:
        """Store ``parked``, once for the same message; ``line`` is the key under which it stood in line."""
        same = "DELETE FROM parked WHERE id = ? AND box = ? AND line = ? AND body = ?"
        self._db.execute(same, (parked.id, parked.box, line, parked.body))
        statement = f"INSERT INTO parked ({_PARKED}, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        values = (parked.id, parked.box, parked.key, parked.reason, parked.origin, parked.attempts)
        self._db.execute(statement, (*values, _to_ms(parked.parked_at), parked.body, line))

    def parked(self) -> list[Parked]:
        """List what is parked, oldest first."""
        query = f"SELECT {_PARKED} FROM parked ORDER BY row"  # noqa: S608
        return [_parked(values) for values in self._db.execute(query)]

    def parked_depth(self) -> tuple[int, datetime | None]:
        """Count what is parked, and tell since when the oldest is."""
        count, oldest = self._db.execute("SELECT count(*), min(parked_ms) FROM parked").fetchone()
        return count, None if oldest is None else _from_ms(oldest)

    def unpark(self, id_: str, key: str | None) -> tuple[Parked, str] | None:
        """Remove the oldest parked letter with that id (and key); return it and its line.

        Raises:
            LookupError: letters of several keys have that id, and none was named.
        """
        query = f"SELECT {_PARKED}, line, row FROM parked WHERE id = ? ORDER BY row"  # noqa: S608
        found = [values for values in self._db.execute(query, (id_,)) if key is None or values[2] == key]
        if len({values[2] for values in found}) > 1:
            raise LookupError(f"several chats have a parked letter {id_}; name the key")
        if not found:
            return None
        *values, line, row = found[0]
        self._db.execute("DELETE FROM parked WHERE row = ?", (row,))
        return _parked(values), line


class Writer:
    """The one thread that touches the table."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queue")
        self._running: asyncio.Future[object] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Do ``work``; a caller that is cancelled leaves it running, for ``outcome``."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._running = cast("asyncio.Future[object]", running)
        return await asyncio.shield(running)

    async def outcome(self) -> object:
        """Wait for what ``run`` began."""
        assert self._running is not None
        return await asyncio.shield(self._running)

    def finish(self, table: Table, jobs: Sequence[Job]) -> asyncio.Future[list[object]]:
        """Commit ``jobs``, close the table, end the thread: it happens whether or not anyone waits for it."""

        def last() -> list[object]:
            try:
                return table.commit(jobs) if jobs else []
            finally:
                table.close()

        closing = asyncio.get_running_loop().run_in_executor(self._thread, last)
        self._thread.shutdown(wait=False)
        return closing


def _parked(values: Sequence[object]) -> Parked:
    id_, box, key, reason, origin, attempts, parked_ms, body = values
    assert isinstance(parked_ms, int)
    return Parked(id_, box, key, reason, origin, attempts, _from_ms(parked_ms), body)  # type: ignore[arg-type]


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _hold(path: Path) -> int:
    """Lock ``path`` for as long as this process lives, and leave our pid in it for whoever comes second."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note = os.pread(lock, 200, 0)
        os.close(lock)
        raise _in_use(path.parent, _holder(note)) from None
    with contextlib.suppress(OSError):  # a full disk: the lock holds without the note
        os.ftruncate(lock, 0)
        os.pwrite(lock, orjson.dumps({"v": VERSION, "pid": os.getpid()}), 0)
    return lock


def _holder(note: bytes) -> str:
    try:
        return f" (pid {int(orjson.loads(note)['pid'])})"
    except (ValueError, KeyError, TypeError):
        return ""


def _in_use(state: Path, holder: str) -> StateInUse:
    message = f"another chat-gateway{holder} uses the queue in {state}"
    hint = 'stop it, or let several daemons share RabbitMQ: broker.url = "amqp://user:password@host:5672/"'
    return StateInUse(message, hint=hint)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
