"""The tables of a delivery ledger, and the one thread that reads and writes them.

::

    letters  (key, id)         done: every piece was accepted
    pieces   (key, id, piece)  unknown: begun and outcome unknown, how often; platform_id: accepted as this
    drafts   (key, id)         the message that shows a reply while it is written; NULL: being sent
    moves    (old)             a chat that goes on under another id
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.errors import LedgerDown, NewerState

T = TypeVar("T")
VERSION = 1
BATCH = 256  # marks of one commit
KEPT = timedelta(days=7)
KEPT_UNFINISHED = timedelta(days=30)  # a chat may have to wait long, or a person may retry a parked letter
DONE_MAX = 200_000
MOVES_MAX = 10_000
PRUNE_EVERY = 5_000  # marks
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
        self._marks = 0

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
        self._marked()

    def sent(self, *, key: str, out_id: str, piece: int, platform_id: str) -> None:
        """Note a piece as accepted."""
        self._file.execute(
            """INSERT INTO pieces VALUES (?, ?, ?, 0, ?, ?)
                ON CONFLICT DO UPDATE SET platform_id = excluded.platform_id, at_ms = excluded.at_ms""",
            (key, out_id, piece, platform_id, self._now_ms()),
        )
        self._marked()

    def done(self, *, key: str, out_id: str) -> None:
        """Note a letter as done, and forget its pieces."""
        self._file.execute("INSERT OR REPLACE INTO letters VALUES (?, ?, ?)", (key, out_id, self._now_ms()))
        self._file.execute("DELETE FROM pieces WHERE key = ? AND id = ?", (key, out_id))
        self._file.execute("DELETE FROM drafts WHERE key = ? AND id = ?", (key, out_id))
        self._marked()

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
        self._marked()
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
        run("DELETE FROM moves WHERE old = ?", (new,))  # it lives under that id now, whatever was said before
        run("INSERT OR REPLACE INTO moves VALUES (?, ?, ?)", (old, new, self._now_ms()))
        run(
            "DELETE FROM moves WHERE old IN (SELECT old FROM moves ORDER BY at_ms DESC LIMIT -1 OFFSET ?)",
            (MOVES_MAX,),
        )
        return self.moves()

    def moves(self) -> dict[str, str]:
        """Return the moved chats: old id → new id."""
        return dict(self._file.execute("SELECT old, new FROM moves").fetchall())

    def _marked(self) -> None:
        self._marks += 1
        if self._marks % PRUNE_EVERY == 0:
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


_Work = Callable[[Rows], Any]
_Outcome = tuple[Any, BaseException | None]
_Answer = Callable[[Any, BaseException | None], None]
_Queue = SimpleQueue[tuple[_Work, _Answer] | None]


class MarksFile:
    """One thread that does what is asked in batches: one transaction, one fsync for all that waits."""

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._clock = clock
        self._asked: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def start(self) -> dict[str, str]:
        """Open the file and return the moved chats."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[dict[str, str]] = loop.create_future()
        answer = _to(loop, opened)
        self._asked = SimpleQueue()
        self._thread = threading.Thread(
            target=self._live, args=(self._asked, answer), name=f"ledger {self._path.stem}", daemon=True
        )
        self._thread.start()
        return await opened

    async def stop(self) -> None:
        """Do what waits, then close the file; it happens whether or not anyone waits for it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.put(None)
            await asyncio.to_thread(thread.join)

    async def ask(self, work: Callable[[Rows], T]) -> T:
        """Return the outcome of ``work`` once it is on disk; it is done even if the caller is cancelled."""
        if self._thread is None:
            raise LedgerDown(f"the ledger {self._path.name} is not open")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._asked.put((work, _to(loop, done)))
        return await done

    # -- in the thread -----------------------------------------------------------------------------

    def _live(self, asked: _Queue, opened: _Answer) -> None:
        try:
            file = self._open()
        except (OSError, sqlite3.Error) as error:
            opened(None, self._down(error))
            return
        except NewerState as error:
            opened(None, error)
            return
        with contextlib.closing(file):
            rows = Rows(file, self._clock)
            opened(rows.moves(), None)
            while self._serve(file, rows, asked):
                pass

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        file = sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)
        try:
            self._prepare(file)
        except BaseException:
            file.close()
            raise
        return file

    def _prepare(self, file: sqlite3.Connection) -> None:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            message = f"{self._path} has version {version}, this program knows {VERSION}"
            raise NewerState(message, hint="run the newer chat-gateway that wrote it")
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=FULL")
        file.execute(f"PRAGMA journal_size_limit={16 * 2**20}")
        file.execute("BEGIN IMMEDIATE")
        (version,) = file.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA:
                file.execute(statement)
            file.execute(f"PRAGMA user_version={VERSION}")
        Rows(file, self._clock).prune()
        file.execute("COMMIT")

    def _serve(self, file: sqlite3.Connection, rows: Rows, asked: _Queue) -> bool:
        """Do what waits as one batch; False where the end was among it."""
        batch = [asked.get()]
        while not asked.empty() and len(batch) < BATCH:
            batch.append(asked.get())
        jobs = [job for job in batch if job is not None]
        outcomes = self._commit(file, rows, [work for work, _ in jobs])
        if any(failure for _, failure in outcomes) and len(jobs) > 1:  # none takes another one with it
            outcomes = [self._commit(file, rows, [work])[0] for work, _ in jobs]
        for (_, answer), (value, failure) in zip(jobs, outcomes, strict=True):
            answer(value, failure)
        return len(jobs) == len(batch)

    def _commit(self, file: sqlite3.Connection, rows: Rows, works: Sequence[_Work]) -> list[_Outcome]:
        try:
            file.execute("BEGIN IMMEDIATE")
            outcomes: list[_Outcome] = [(work(rows), None) for work in works]
            file.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, and the next be served
            if file.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    file.execute("ROLLBACK")
            return [(None, self._down(error))] * len(works)
        return outcomes

    def _down(self, error: Exception) -> LedgerDown:
        down = LedgerDown(
            f"{self._path} cannot be written: {error}",
            hint=f"free space, or check the rights of {self._path.parent}; a damaged file may be moved away",
        )
        down.__cause__ = error
        return down


def _to(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any]) -> _Answer:
    """Return what hands an outcome from the thread to the loop, where somebody still waits for it."""

    def deliver(value: object, failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is None:
            done.set_result(value)
        else:
            done.set_exception(failure)

    def answer(value: object, failure: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, value, failure)

    return answer
