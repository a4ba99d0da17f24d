"""The durable half of the embedded queue: its statements on the tables ``queue`` and ``parked``.

Puts and removals of a batch are each one statement for all of its jobs (``StateDatabase.later``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

import durable
from gateway.queue.mailbox import NO_HEADERS, Parked, Post, Waiting

_INSERT = "INSERT INTO queue VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM queue WHERE seq = ?"
_PARKED = "id, name, key, reason, origin, attempts, parked_ms, body"


class QueueRow(NamedTuple):
    """A message as it lies in the table."""

    seq: int
    key: str
    id: str
    body: bytes
    headers: Mapping[str, str] = NO_HEADERS


@dataclass(slots=True)
class Inserted:
    """A row of the running batch; ``stored`` turns False at its end if the same message waits already."""

    seq: int
    stored: bool = True


class QueueTable:
    """The queue's part of the state database. Every method runs in the writing thread."""

    def __init__(self, database: durable.StateDatabase) -> None:
        self._database = database
        self._inserted: list[Inserted] = []
        self.last_seq = 0

    def load_counts(self) -> dict[str, int]:
        """Look into the table, before anything else; return the number of rows by queue."""
        if self._mark_repeated not in self._database.before_commit:
            self._database.before_commit.append(self._mark_repeated)
        (self.last_seq,) = self._query("SELECT coalesce(max(seq), 0) FROM queue").fetchone()
        return self._counts()

    def _query(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._database.query(statement, values)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────

    def insert(self, post: Post, at: datetime) -> Inserted:
        """Append ``post``, unless the same message waits already, which shows at the end of the batch.

        Raises:
            ValueError: a name is no valid text; nothing was appended.
        """
        for name in (post.box, post.key, post.id):
            name.encode()
        self.last_seq += 1
        headers = orjson.dumps(dict(post.headers)) if post.headers else None
        self._database.later(
            _INSERT, (self.last_seq, post.box, post.key, post.id, post.body, headers, _to_ms(at))
        )
        inserted = Inserted(self.last_seq)
        self._inserted.append(inserted)
        return inserted

    def _mark_repeated(self) -> None:
        """Mark the rows of this batch that were not stored, because the same message waits already."""
        inserted, self._inserted = self._inserted, []
        if not inserted:
            return
        first = inserted[0].seq
        (count,) = self._query("SELECT count(*) FROM queue WHERE seq >= ?", (first,)).fetchone()
        if count == len(inserted):
            return
        stored = {seq for (seq,) in self._query("SELECT seq FROM queue WHERE seq >= ?", (first,))}
        for each in inserted:
            each.stored = each.seq in stored

    def remove(self, seq: int) -> None:
        """Remove a row."""
        self._database.later(_REMOVE, (seq,))

    def load(self, name: str, after: int, *, limit: int, max_bytes: int) -> tuple[list[QueueRow], bool]:
        """Read the rows of queue ``name`` behind ``after``, in order; and whether more may follow."""
        query = (
            "SELECT seq, key, id, body, headers FROM queue WHERE name = ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        cursor = self._query(query, (name, after, limit))
        rows: list[QueueRow] = []
        for seq, key, id_, body, headers in cursor:
            rows.append(QueueRow(seq, key, id_, body, orjson.loads(headers) if headers else NO_HEADERS))
            max_bytes -= len(body)
            if max_bytes <= 0:
                cursor.close()
                return rows, True
        return rows, len(rows) == limit

    def oldest(self, name: str) -> datetime | None:
        """Return when the first row of queue ``name`` was put; None where it is empty."""
        query = "SELECT put_ms FROM queue WHERE name = ? ORDER BY seq LIMIT 1"
        found = self._query(query, (name,)).fetchone()
        return _from_ms(found[0]) if found else None

    def waiting(self, message_id: str) -> list[Waiting]:
        """List the rows with this id, and those put for the message of this id, in their order."""
        query = "SELECT name, key, id, put_ms FROM queue WHERE id = ?1 OR (id >= ?2 AND id < ?3) ORDER BY seq"
        found = self._query(query, (message_id, f"{message_id}#", f"{message_id}$"))
        return [Waiting(name, key, id_, _from_ms(ms)) for name, key, id_, ms in found]

    def bodies_with(self, text: bytes) -> list[bytes]:
        """Return every body that holds ``text``, of messages that wait, are worked on or are parked."""
        # One statement: a message that is parked or retried meanwhile is in one of the two tables.
        holds = "SELECT body FROM {} WHERE instr(body, ?1)"
        query = f"{holds.format('queue')} UNION ALL {holds.format('parked')}"
        return [bytes(row[0]) for row in self._query(query, (text,))]

    def erase(self, keys: Collection[str]) -> tuple[list[bytes], dict[str, int]]:
        """Remove every message of these keys, waiting, worked on or parked.

        Returns:
            Their bodies, and how many rows are left by queue.
        """
        bodies: list[bytes] = []
        for key in keys:
            for table, column in (("queue", "key"), ("parked", "key"), ("parked", "line")):
                query = f"DELETE FROM {table} WHERE {column} = ? RETURNING body"  # noqa: S608
                bodies += [bytes(row[0]) for row in self._query(query, (key,)).fetchall()]
        return bodies, self._counts()

    def _counts(self) -> dict[str, int]:
        return dict(self._query("SELECT name, count(*) FROM queue GROUP BY name").fetchall())

    def touch(self) -> None:
        """Write something harmless, to learn whether the disk takes it again."""
        self._query(f"PRAGMA user_version={durable.STATE_VERSION}")

    # ── parked ────────────────────────────────────────────────────────────────────────────────────────────

    def park(self, parked: Parked, line: str) -> None:
        """Store ``parked``, once for the same message; ``line`` is the key under which it waited."""
        same = "DELETE FROM parked WHERE id = ? AND name = ? AND line = ? AND body = ?"
        self._query(same, (parked.id, parked.box, line, parked.body))
        statement = f"INSERT INTO parked ({_PARKED}, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        values = (parked.id, parked.box, parked.key, parked.reason, parked.origin, parked.attempts)
        self._query(statement, (*values, _to_ms(parked.parked_at), parked.body, line))

    def parked(self) -> list[Parked]:
        """List what is parked, oldest first."""
        query = f"SELECT {_PARKED} FROM parked ORDER BY seq"  # noqa: S608
        return [_parked(values) for values in self._query(query)]

    def parked_depth(self) -> tuple[int, datetime | None]:
        """Count what is parked, and tell since when the oldest is."""
        count, oldest = self._query("SELECT count(*), min(parked_ms) FROM parked").fetchone()
        return count, None if oldest is None else _from_ms(oldest)

    def unpark(self, id_: str, key: str | None) -> tuple[Parked, str] | None:
        """Remove the oldest parked letter with that id (and key); return it and its line.

        Raises:
            LookupError: letters of several keys have that id, and none was named.
        """
        query = f"SELECT {_PARKED}, line, seq FROM parked WHERE id = ? ORDER BY seq"  # noqa: S608
        found = [values for values in self._query(query, (id_,)) if key is None or values[2] == key]
        if len({values[2] for values in found}) > 1:
            raise LookupError(f"several chats have a parked letter {id_}; name the key")
        if not found:
            return None
        *values, line, seq = found[0]
        self._query("DELETE FROM parked WHERE seq = ?", (seq,))
        return _parked(values), line


def _parked(values: Sequence[object]) -> Parked:
    id_, box, key, reason, origin, attempts, parked_ms, body = values
    assert isinstance(parked_ms, int)
    return Parked(id_, box, key, reason, origin, attempts, _from_ms(parked_ms), body)  # type: ignore[arg-type]


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
