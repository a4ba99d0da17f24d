"""The tables of a delivery ledger, and the one thread that reads and writes them.

::

    letters  (key, id)         done: every piece was accepted
    pieces   (key, id, piece)  unknown: begun and outcome unknown, how often; platform_id: accepted as this,
                               at at_ms; of a letter that is done they stay, for who traces it, and piece -1
                               has the time at which it was put
    drafts   (key, id)         the message that shows a reply while it is written; NULL: being sent
    moves    (old)             a chat that goes on under another id
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import durable
from gateway.errors import LedgerDown, NewerState

T = TypeVar("T")
VERSION = 1
KEPT = timedelta(days=7)
# A chat may have to wait long, or a person may retry a parked letter.
KEPT_UNFINISHED = timedelta(days=30)
DONE_MAX = 200_000
MOVES_MAX = 10_000
# In changes.
PRUNE_EVERY = 5_000
BUSY_S = 5.0
# The piece in whose row stands when a letter was put.
PUT = -1

_SCHEMA = (
    """CREATE TABLE letters (key TEXT NOT NULL, id TEXT NOT NULL, done_ms INTEGER NOT NULL,
        PRIMARY KEY (key, id)) WITHOUT ROWID""",
    "CREATE INDEX letters_by_age ON letters (done_ms)",
    """CREATE TABLE pieces (key TEXT NOT NULL, id TEXT NOT NULL, piece INTEGER NOT NULL,
        unknown INTEGER NOT NULL, platform_id TEXT, at_ms INTEGER NOT NULL,
        PRIMARY KEY (key, id, piece)) WITHOUT ROWID""",
    """CREATE TABLE drafts (key TEXT NOT NULL, id TEXT NOT NULL, platform_id TEXT, at_ms INTEGER NOT NULL,
        PRIMARY KEY (key, id)) WITHOUT ROWID""",
    "CREATE TABLE moves (old TEXT PRIMARY KEY, new TEXT NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a letter came.

    Args:
        done: every piece was accepted.
        sent: piece number → the platform's id.
        unknown: piece number → how many sends of it were begun whose outcome nobody knows.
        draft: the platform's id of the message that shows the reply so far; empty where there is none.
    """

    done: bool = False
    sent: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, int] = field(default_factory=dict)
    draft: str = ""


class Rows:
    """What is asked of the tables, within the transaction of a batch."""

    def __init__(self, file: sqlite3.Connection, clock: Callable[[], datetime]) -> None:
        self._file = file
        self._clock = clock
        self._changes = 0

    def _now_ms(self, *, ago: timedelta = timedelta(0)) -> int:
        return int((self._clock() - ago).timestamp() * 1000)

    def progress(self, *, key: str, out_id: str) -> Progress:
        """Say how far a letter came."""
        run = self._file.execute
        name = (key, out_id)
        if run("SELECT 1 FROM letters WHERE key = ? AND id = ?", name).fetchone():
            return Progress(done=True)
        sent: dict[int, str] = {}
        unknown: dict[int, int] = {}
        for piece, count, platform_id in run(
            "SELECT piece, unknown, platform_id FROM pieces WHERE key = ? AND id = ?", name
        ):
            if platform_id is not None:
                sent[piece] = platform_id
            elif count:
                unknown[piece] = count
        draft = run("SELECT platform_id FROM drafts WHERE key = ? AND id = ?", name).fetchone()
        return Progress(sent=sent, unknown=unknown, draft=(draft and draft[0]) or "")

    def count(self, *, key: str, out_id: str, piece: int, by: int) -> None:
        """Count a send whose outcome is unknown, or take one back."""
        self._file.execute(
            """INSERT INTO pieces VALUES (?, ?, ?, max(0, ?), NULL, ?)
                ON CONFLICT DO UPDATE SET unknown = max(0, unknown + ?), at_ms = excluded.at_ms""",
            (key, out_id, piece, by, self._now_ms(), by),
        )
        self._changed()

    def sent(self, *, key: str, out_id: str, piece: int, platform_id: str) -> None:
        """Note a piece as accepted."""
        self._file.execute(
            """INSERT INTO pieces VALUES (?, ?, ?, 0, ?, ?)
                ON CONFLICT DO UPDATE SET platform_id = excluded.platform_id, at_ms = excluded.at_ms""",
            (key, out_id, piece, platform_id, self._now_ms()),
        )
        self._changed()

    def sent_last(
        self, *, key: str, out_id: str, piece: int, platform_id: str, put_at: datetime | None
    ) -> None:
        """Note the last piece as accepted, its letter as done, and when that was put."""
        self.sent(key=key, out_id=out_id, piece=piece, platform_id=platform_id)
        if put_at is not None:
            values = (key, out_id, PUT, int(put_at.timestamp() * 1000))
            self._file.execute("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, 0, NULL, ?)", values)
        self.done(key=key, out_id=out_id)

    def done(self, *, key: str, out_id: str) -> None:
        """Note a letter as done."""
        self._file.execute("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", (key, out_id, self._now_ms()))
        self._file.execute("DELETE FROM drafts WHERE key = ? AND id = ?", (key, out_id))
        self._changed()

    def set_aside(self, *, key: str, out_id: str) -> None:
        """Forget the unknown outcomes of a letter."""
        self._file.execute("UPDATE pieces SET unknown = 0 WHERE key = ? AND id = ?", (key, out_id))

    def begin_draft(self, *, key: str, out_id: str) -> str | None:
        """Note that a draft is being sent, unless there is one or may be one."""
        run = self._file.execute
        name = (key, out_id)
        draft = run("SELECT platform_id FROM drafts WHERE key = ? AND id = ?", name).fetchone()
        if draft is not None:
            return str(draft[0]) if draft[0] is not None else None
        for table in ("letters", "pieces"):
            query = f"SELECT 1 FROM {table} WHERE key = ? AND id = ?"  # noqa: S608
            if run(query, name).fetchone():
                return None
        run("INSERT INTO drafts VALUES (?, ?, NULL, ?)", (*name, self._now_ms()))
        self._changed()
        return ""

    def draft_sent(self, *, key: str, out_id: str, platform_id: str) -> None:
        """Note the platform's id of a draft."""
        self._file.execute(
            "UPDATE drafts SET platform_id = ?, at_ms = ? WHERE key = ? AND id = ?",
            (platform_id, self._now_ms(), key, out_id),
        )

    def drop_draft(self, *, key: str, out_id: str) -> None:
        """Forget a draft."""
        self._file.execute("DELETE FROM drafts WHERE key = ? AND id = ?", (key, out_id))

    def moved(self, *, old: str, new: str) -> dict[str, str]:
        """Note that a chat moved; return all moves."""
        run = self._file.execute
        # The chat lives under the new id now, whatever was said before.
        run("DELETE FROM moves WHERE old = ?", (new,))
        run("INSERT OR REPLACE INTO moves VALUES (?, ?, ?)", (old, new, self._now_ms()))
        run(
            "DELETE FROM moves WHERE old IN (SELECT old FROM moves ORDER BY at_ms DESC LIMIT -1 OFFSET ?)",
            (MOVES_MAX,),
        )
        return self.moves()

    def moves(self) -> dict[str, str]:
        """Return the moved chats: old id → new id."""
        return dict(self._file.execute("SELECT old, new FROM moves").fetchall())

    def forget(self, keys: Collection[str], *, before: datetime | None) -> int:
        """Forget the letters of these keys; with a time those done before it alone. Returns how many rows."""
        end_ms, count = 2**62 if before is None else int(before.timestamp() * 1000), 0
        under_way = [("pieces", "at_ms"), ("drafts", "at_ms")] if before is None else []
        # The pieces of a letter that is done go with it.
        done = (
            "SELECT 1 FROM letters WHERE letters.key = pieces.key AND letters.id = pieces.id AND done_ms < ?"
        )
        query = f"DELETE FROM pieces WHERE key = ? AND EXISTS ({done})"  # noqa: S608
        self._file.executemany(query, [(key, end_ms) for key in keys])
        for table, at in [("letters", "done_ms"), *under_way]:
            query = f"DELETE FROM {table} WHERE key = ? AND {at} < ?"  # noqa: S608
            count += self._file.executemany(query, [(key, end_ms) for key in keys]).rowcount
        return count

    def _changed(self) -> None:
        self._changes += 1
        if self._changes % PRUNE_EVERY == 0:
            self.prune()

    def prune(self) -> None:
        """Forget what is older than anything that may still come again."""
        run = self._file.execute
        old = "SELECT key, id FROM letters WHERE done_ms < ?"
        many = "SELECT key, id FROM letters ORDER BY done_ms DESC LIMIT -1 OFFSET ?"
        for which, bound in ((old, self._now_ms(ago=KEPT)), (many, DONE_MAX)):
            for table in ("pieces", "letters"):
                run(f"DELETE FROM {table} WHERE (key, id) IN ({which})", (bound,))  # noqa: S608
        oldest = (self._now_ms(ago=KEPT_UNFINISHED),)
        run("DELETE FROM pieces WHERE at_ms < ?", oldest)
        run("DELETE FROM drafts WHERE at_ms < ?", oldest)


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
        rows = Rows(database.file, lambda: datetime.now(UTC))
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
    # What goes out for a message is named ``<its id>#…``, a proactive letter by its own id.
    bounds = (message_id, f"{message_id}#", f"{message_id}$")
    where = "WHERE id = ? OR (id >= ? AND id < ?)"
    database = durable.Database(path, _schema(), down=_refused(path), busy_s=BUSY_S)
    try:
        database.open()
        run = database.file.execute
        found = [
            SentRow(key, id_, None, _from_ms(ms))
            for key, id_, ms in run(f"SELECT key, id, done_ms FROM letters {where}", bounds)  # noqa: S608
        ]
        query = f"SELECT key, id, piece, at_ms, platform_id, unknown FROM pieces {where}"  # noqa: S608
        for key, id_, piece, ms, platform_id, unknown in run(query, bounds):
            found.append(SentRow(key, id_, piece, _from_ms(ms), platform_id or "", unknown))
    except (OSError, sqlite3.Error) as error:
        raise _refused(path)(error) from error
    finally:
        database.close()
    return found


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _schema() -> durable.Schema:
    return durable.Schema(_SCHEMA, VERSION, 16 * 2**20, newer=NewerState)


def _refused(path: Path) -> Callable[[Exception], LedgerDown]:
    return lambda error: LedgerDown(
        f"{path} cannot be written: {error}",
        hint=f"free space, or check the rights of {path.parent}; a damaged file may be moved away",
    )


class LedgerFile:
    """The file of a ledger, in a thread of its own: whatever waits becomes one transaction with one fsync."""

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._clock = clock
        self._down = _refused(path)
        # What is noted of a letter is awaited before the next; of different letters it has no order.
        self._database = durable.Database(path, _schema(), down=self._down, busy_s=BUSY_S, retry_each=True)
        self._rows: Rows | None = None
        self._commits: durable.GroupCommit | None = None

    async def start(self) -> dict[str, str]:
        """Open the file and return the moved chats."""
        commits = durable.GroupCommit(self._database, name=f"ledger {self._path.stem}", closed=self._not_open)
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
            rows = self._rows = Rows(self._database.file, self._clock)
            (pruned,) = self._database.commit([durable.Job(rows.prune)])
            if isinstance(pruned, Exception):
                raise pruned
            return rows.moves()
        except (OSError, sqlite3.Error) as error:
            raise self._down(error) from error

    def _not_open(self) -> LedgerDown:
        return LedgerDown(f"the ledger {self._path.name} is not open")
