"""The tables of a delivery ledger, and what is done to them.

::

    letters  (key, id)         done: every piece was accepted
    pieces   (key, id, piece)  unknown: begun and outcome unknown, how often; platform_id: accepted as this,
                               at at_ms; of a letter that is done they stay, for who traces it, and piece -1
                               has the time at which it was put
    drafts   (key, id)         the message that shows a reply while it is written; NULL: being sent
    moves    (old)             a chat that goes on under another id
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from gateway.outbound.ledger_log import FORGET, LedgerLog, Note

T = TypeVar("T")
P = ParamSpec("P")
VERSION = 1
KEPT = timedelta(days=7)
# A chat may have to wait long, or a person may retry a parked letter.
KEPT_UNFINISHED = timedelta(days=30)
DONE_MAX = 200_000
MOVES_MAX = 10_000
# In changes.
PRUNE_EVERY = 5_000
# The piece in whose row stands when a letter was put.
PUT = -1

TABLES = (
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

# Beside the tables of the schema, so that an earlier version goes on with the file: up to which line what
# other machines noted was done here.
_MERGED = "CREATE TABLE IF NOT EXISTS merged (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID"
CHANGES = frozenset(
    ["count", "sent", "sent_last", "done", "set_aside", "begin_draft", "draft_sent", "drop_draft", "moved"]
)
# What a note with odd arguments raises; what the disk raises is none of it.
_CANNOT = (
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
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


def _noted(method: Callable[Concatenate[Rows, P], T]) -> Callable[Concatenate[Rows, P], T]:
    """Have a change noted for other machines; the changes of which it consists are part of it."""

    @wraps(method)
    def change(rows: Rows, /, *args: P.args, **arguments: P.kwargs) -> T:
        if rows.notes is None:
            return method(rows, *args, **arguments)
        notes, rows.notes = rows.notes, None
        try:
            notes.append(Note(method.__name__, arguments))
            return method(rows, *args, **arguments)
        finally:
            rows.notes = notes

    return change


class Rows:
    """What is asked of the tables, within the transaction of a batch; ``notes`` has what was changed."""

    def __init__(
        self, file: sqlite3.Connection, clock: Callable[[], datetime], notes: list[Note] | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._changes = 0
        self.notes = notes

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

    @_noted
    def count(self, *, key: str, out_id: str, piece: int, by: int) -> None:
        """Count a send whose outcome is unknown, or take one back."""
        self._file.execute(
            """INSERT INTO pieces VALUES (?, ?, ?, max(0, ?), NULL, ?)
                ON CONFLICT DO UPDATE SET unknown = max(0, unknown + ?), at_ms = excluded.at_ms""",
            (key, out_id, piece, by, self._now_ms(), by),
        )
        self._changed()

    @_noted
    def sent(self, *, key: str, out_id: str, piece: int, platform_id: str) -> None:
        """Note a piece as accepted."""
        self._file.execute(
            """INSERT INTO pieces VALUES (?, ?, ?, 0, ?, ?)
                ON CONFLICT DO UPDATE SET platform_id = excluded.platform_id, at_ms = excluded.at_ms""",
            (key, out_id, piece, platform_id, self._now_ms()),
        )
        self._changed()

    @_noted
    def sent_last(
        self, *, key: str, out_id: str, piece: int, platform_id: str, put_at: datetime | None
    ) -> None:
        """Note the last piece as accepted, its letter as done, and when that was put."""
        self.sent(key=key, out_id=out_id, piece=piece, platform_id=platform_id)
        if put_at is not None:
            values = (key, out_id, PUT, int(put_at.timestamp() * 1000))
            self._file.execute("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, 0, NULL, ?)", values)
        self.done(key=key, out_id=out_id)

    @_noted
    def done(self, *, key: str, out_id: str) -> None:
        """Note a letter as done."""
        self._file.execute("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", (key, out_id, self._now_ms()))
        self._file.execute("DELETE FROM drafts WHERE key = ? AND id = ?", (key, out_id))
        self._changed()

    @_noted
    def set_aside(self, *, key: str, out_id: str) -> None:
        """Forget the unknown outcomes of a letter."""
        self._file.execute("UPDATE pieces SET unknown = 0 WHERE key = ? AND id = ?", (key, out_id))

    @_noted
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

    @_noted
    def draft_sent(self, *, key: str, out_id: str, platform_id: str) -> None:
        """Note the platform's id of a draft."""
        self._file.execute(
            "UPDATE drafts SET platform_id = ?, at_ms = ? WHERE key = ? AND id = ?",
            (platform_id, self._now_ms(), key, out_id),
        )

    @_noted
    def drop_draft(self, *, key: str, out_id: str) -> None:
        """Forget a draft."""
        self._file.execute("DELETE FROM drafts WHERE key = ? AND id = ?", (key, out_id))

    @_noted
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

    def merge(self, log: LedgerLog) -> int:
        """Do what other machines have noted since; return how many notes those were."""
        self._file.execute(_MERGED)
        known: dict[str, int] = dict(self._file.execute("SELECT name, n FROM merged").fetchall())
        count, upto = 0, dict[str, int]()
        for name, n, note, at_ms in log.others(known):
            self.do(note, at_ms)
            upto[name], count = n, count + 1
        self._file.executemany("INSERT OR REPLACE INTO merged VALUES (?, ?)", upto.items())
        return count

    def do(self, note: Note, at_ms: int) -> None:
        """Do as another machine did, at its time; what cannot be done here is passed over.

        A newer version noted it, or a disk has spoilt it.
        """
        arguments, rows = dict(note.arguments), Rows(self._file, lambda: from_ms(at_ms))
        with contextlib.suppress(*_CANNOT):
            if note.do == FORGET:
                before_ms = arguments["before"]
                rows.forget(arguments["keys"], before=None if before_ms is None else from_ms(before_ms))
                return
            if isinstance(arguments.get("put_at"), str):
                arguments["put_at"] = datetime.fromisoformat(arguments["put_at"])
            if note.do in CHANGES:
                getattr(rows, note.do)(**arguments)

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


def from_ms(ms: int) -> datetime:
    """Return a time, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
