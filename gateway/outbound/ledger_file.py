"""The tables of a delivery ledger, and the one thread that reads and writes them.

::

    letters  (key, id)         done: every piece was accepted
    pieces   (key, id, piece)  unknown: begun and outcome unknown, how often; platform_id: accepted as this
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

    def done(self, *, key: str, out_id: str) -> None:
        """Note a letter as done, and forget its pieces."""
        self._file.execute("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", (key, out_id, self._now_ms()))
        self._file.execute("DELETE FROM pieces WHERE key = ? AND id = ?", (key, out_id))
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
        run("DELETE FROM letters WHERE done_ms < ?", (self._now_ms(ago=KEPT),))
        run(
            """DELETE FROM letters WHERE (key, id) IN
                (SELECT key, id FROM letters ORDER BY done_ms DESC LIMIT -1 OFFSET ?)""",
            (DONE_MAX,),
        )
        old = (self._now_ms(ago=KEPT_UNFINISHED),)
        run("DELETE FROM pieces WHERE at_ms < ?", old)
        run("DELETE FROM drafts WHERE at_ms < ?", old)


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
