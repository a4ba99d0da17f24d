"""The durable half of the embedded queue: rows in one SQLite file, changed batch by batch from one thread.

Two tables. ``letters`` is the log of what waits or is being worked on: ``row`` is the order, a row is removed
when its letter is settled. ``parked`` holds what was set aside. A batch is one transaction with one fsync
(WAL, ``synchronous=FULL``): what it reported done survives a power cut, what it did not is not there.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import orjson

import durable
from gateway.errors import MailboxDown, MailboxError, NewerState, StateInUse
from gateway.queue.mailbox import NO_HEADERS, Parked, Post, Waiting
from session.disk.local_files import local_state

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
# Beside the tables of the schema, so that an earlier version, which knows no headers, goes on with the file.
_HEADERS = "CREATE TABLE IF NOT EXISTS letter_headers (row INTEGER PRIMARY KEY, headers BLOB NOT NULL)"
_PARKED = "id, box, key, reason, origin, attempts, parked_ms, body"


class LetterRow(NamedTuple):
    """A letter as it lies in the table."""

    row: int
    key: str
    id: str
    body: bytes
    headers: Mapping[str, str] = NO_HEADERS


class QueueTable:
    """The file ``queue.db`` of this machine and the lock in ``state/``, which keeps out every other machine.

    Every method runs in the writer's thread.

    ``at`` is called with the name of each instant of a commit, as ``durable.Database`` says.
    """

    def __init__(self, state: Path, *, at: Callable[[str], None] | None = None) -> None:
        self._state = state
        self._at = at
        self._lock: int | None = None
        self._database = self._of(state)
        self.last_row = 0
        # Whether any letter has headers: without, none need be looked for.
        self._headed = False

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> dict[str, int]:
        """Lock the folder and open the file, which is made where there is none; return the letters by box.

        Raises:
            StateInUse: another process holds the folder.
            NewerState: a newer version wrote the file; it was not touched.
            MailboxError: the file or its folder cannot be used.
        """
        place = self._state
        try:
            durable.make_folder(self._state)
            self._lock = _hold(self._state / LOCK)
            # A start may just have moved it.
            place = local_state(self._state)
            self._database = self._of(place)
            self._database.open()
            self._db.execute(_HEADERS)
            self._forget_headers()
            (self.last_row,) = self._db.execute("SELECT coalesce(max(row), 0) FROM letters").fetchone()
            return self._counts()
        except (OSError, sqlite3.Error) as error:
            # A daemon whose lock file somebody removed still holds the database itself.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise _in_use(self._state, "") from error
            hint = f"free space, or check the rights of {place}; a damaged {FILE} may be moved away"
            path = place / FILE
            raise MailboxError(f"the queue {path} cannot be opened: {error}", hint=hint) from error

    def commit(self, jobs: Sequence[durable.Job]) -> list[object]:
        """Run ``jobs`` as one batch, as ``durable.Database`` does; the disk's refusal is ``MailboxDown``."""
        return self._database.commit(jobs)

    def close(self) -> None:
        """Close the file, then release the folder. A second call does nothing."""
        lock, self._lock = self._lock, None
        try:
            self._database.close()
        finally:
            if lock is not None:
                os.close(lock)

    def _of(self, place: Path) -> durable.Database:
        schema = durable.Schema(_SCHEMA, VERSION, 64 * 2**20, newer=NewerState)
        return durable.Database(place / FILE, schema, down=_down, alone=True, at=self._at)

    @property
    def _db(self) -> sqlite3.Connection:
        return self._database.file

    # ── letters ───────────────────────────────────────────────────────────────────────────────────────────

    def insert(self, post: Post, at: datetime) -> int | None:
        """Append ``post``; return its row, or None where the same one waits already."""
        self.last_row += 1
        values = (self.last_row, post.box, post.key, post.id, post.body, _to_ms(at))
        done = self._db.execute(
            "INSERT INTO letters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values
        )
        if not done.rowcount:
            return None
        if post.headers:
            headers = orjson.dumps(dict(post.headers))
            self._db.execute("INSERT OR REPLACE INTO letter_headers VALUES (?, ?)", (self.last_row, headers))
            self._headed = True
        return self.last_row

    def remove(self, row: int) -> None:
        """Remove a letter."""
        self._db.execute("DELETE FROM letters WHERE row = ?", (row,))
        if self._headed:
            self._db.execute("DELETE FROM letter_headers WHERE row = ?", (row,))

    def load(self, box: str, after: int, *, limit: int, max_bytes: int) -> tuple[list[LetterRow], bool]:
        """Read the letters of ``box`` behind row ``after``, in order; and whether more may follow."""
        query = """SELECT row, key, id, body, headers FROM letters LEFT JOIN letter_headers USING (row)
            WHERE box = ? AND row > ? ORDER BY row LIMIT ?"""
        cursor = self._db.execute(query, (box, after, limit))
        rows: list[LetterRow] = []
        for values in cursor:
            row, key, id_, body, headers = values
            rows.append(LetterRow(row, key, id_, body, orjson.loads(headers) if headers else NO_HEADERS))
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

    def waiting(self, message_id: str) -> list[Waiting]:
        """List the letters with this id, and those put for the message of this id, in their order."""
        query = (
            "SELECT box, key, id, put_ms FROM letters WHERE id = ?1 OR (id >= ?2 AND id < ?3) ORDER BY row"
        )
        found = self._db.execute(query, (message_id, f"{message_id}#", f"{message_id}$"))
        return [Waiting(box, key, id_, _from_ms(ms)) for box, key, id_, ms in found]

    def bodies_with(self, text: bytes) -> list[bytes]:
        """Return every body that holds ``text``, of letters that wait, are worked on or are parked."""
        # One statement: a letter that is parked or put back meanwhile is in one of the two tables.
        holds = "SELECT body FROM {} WHERE instr(body, ?1)"
        query = f"{holds.format('letters')} UNION ALL {holds.format('parked')}"
        return [bytes(row[0]) for row in self._db.execute(query, (text,))]

    def erase(self, keys: Collection[str]) -> tuple[list[bytes], dict[str, int]]:
        """Remove every letter of these keys, waiting, worked on or parked.

        Returns:
            Their bodies, and how many letters are left by box.
        """
        bodies: list[bytes] = []
        for key in keys:
            for table, column in (("letters", "key"), ("parked", "key"), ("parked", "line")):
                query = f"DELETE FROM {table} WHERE {column} = ? RETURNING body"  # noqa: S608
                bodies += [bytes(row[0]) for row in self._db.execute(query, (key,)).fetchall()]
        self._forget_headers()
        return bodies, self._counts()

    def _forget_headers(self) -> None:
        """Forget the headers of letters that are gone, by an erasure or an earlier version."""
        self._db.execute("DELETE FROM letter_headers WHERE row NOT IN (SELECT row FROM letters)")
        self._headed = self._db.execute("SELECT 1 FROM letter_headers LIMIT 1").fetchone() is not None

    def _counts(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT box, count(*) FROM letters GROUP BY box").fetchall())

    def compact(self) -> None:
        """Write the file anew, so that no byte of what was removed stays in it or in its log; no batch runs.

        Raises:
            MailboxDown: the disk refused; the letters are as they were.
        """
        try:
            self._database.compact()
        except sqlite3.Error as error:
            raise _down(error) from error

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


def _parked(values: Sequence[object]) -> Parked:
    id_, box, key, reason, origin, attempts, parked_ms, body = values
    assert isinstance(parked_ms, int)
    return Parked(id_, box, key, reason, origin, attempts, _from_ms(parked_ms), body)  # type: ignore[arg-type]


def _down(error: Exception) -> MailboxDown:
    return MailboxDown(f"the queue could not be written: {error}", hint="is the disk full?")


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _hold(path: Path) -> int:
    """Lock ``path`` for as long as this process lives, and leave our pid in it for whoever comes second."""
    lock = durable.open_private(path)
    if not durable.try_lock(lock):
        note = os.pread(lock, 200, 0)
        os.close(lock)
        raise _in_use(path.parent, _holder(note))
    # On a full disk the lock holds without the note.
    with contextlib.suppress(OSError):
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
    hint = (
        "wait where it is ending, which chat-gateway status shows; else stop it, or let several daemons "
        'share RabbitMQ: broker.url = "amqp://user:password@host:5672/"'
    )
    return StateInUse(message, hint=hint)
