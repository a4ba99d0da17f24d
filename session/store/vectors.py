"""Vectors of message texts in ``state/vectors.db``; derived: losing them costs a request and no more."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from durable import check_version, touch
from session.disk.layout import Layout
from session.disk.state import let_go, locked, try_lock
from session.errors import NewerFormat, StoreError
from session.models.model import Vector
from session.models.similarity import from_bytes, to_bytes

T = TypeVar("T")
log = structlog.get_logger("vectors")

FILE = "vectors.db"
VERSION = 1
MAX_BYTES = 64 * 2**20
MAX_WAL_BYTES = 2**20
# How long another process is waited for; then the turn goes on without.
BUSY_S = 0.2
FORGET_S = 2.0
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_TABLE = """
CREATE TABLE IF NOT EXISTS vectors (
    id INTEGER PRIMARY KEY, chat BLOB NOT NULL, text BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)
"""


class Vectors:
    """Keeps vectors by model, conversation and text, of which it holds digests only; for threads.

    Several processes may use one file. Where it is damaged it is begun anew; where the disk refuses or
    another process is in the way, nothing is found and nothing kept. Only ``open`` raises.

    Args:
        state: the folder.
        max_bytes: how large the file may become; then the vectors that were kept first go.
        busy_s: how long another process is waited for.
        patient: one that opens the file at this moment is waited for, too.
    """

    def __init__(
        self, state: Path, *, max_bytes: int = MAX_BYTES, busy_s: float = BUSY_S, patient: bool = False
    ) -> None:
        self._path = state / FILE
        self._max_bytes = max_bytes
        self._busy_s = busy_s
        self._patient = patient
        self._file: sqlite3.Connection | None = None
        self._inode = 0
        self._lock = threading.Lock()
        self._told = ""

    def open(self) -> None:
        """Open the file, or begin it.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        with self._lock:
            try:
                self._opened()
            except NewerFormat:
                raise
            except (sqlite3.Error, OSError, StoreError) as error:
                # The first use tries again, and tells of it.
                log.debug("vectors.unopened", error=str(error))

    def read(self, model: str, stem: str, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are known of ``texts``."""

        def find(file: sqlite3.Connection) -> dict[str, Vector]:
            found = {}
            for text in texts:
                row = file.execute(
                    "SELECT vector FROM vectors WHERE text = ?", (_text(model, stem, text),)
                ).fetchone()
                vector = from_bytes(row[0]) if row and isinstance(row[0], bytes) else None
                if vector is not None:
                    found[text] = vector
            return found

        return self.run(find) or {}

    def write(
        self, model: str, stem: str, vectors: Mapping[str, Vector], *, still: Callable[[], bool] | None = None
    ) -> None:
        """Keep vectors, in place of those that were known of the same texts.

        ``still`` says whether they are wanted yet, and is asked where no ``forget`` can come in between.
        """
        rows = [(_chat(stem), _text(model, stem, text), to_bytes(vector)) for text, vector in vectors.items()]

        def keep(file: sqlite3.Connection) -> None:
            with file:
                file.execute("BEGIN IMMEDIATE")
                if still is not None and not still():
                    return
                file.executemany("REPLACE INTO vectors (chat, text, vector) VALUES (?, ?, ?)", rows)
                while self._is_full(file) and _drop_oldest(file):
                    pass

        self.run(keep)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run a job; None where it could not be done. A damaged file is replaced, once."""
        with self._lock:
            for last in (False, True):
                try:
                    outcome = job(self._opened())
                except sqlite3.Error as error:
                    damaged = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED
                    self._tell(f"{type(error).__name__}: {error}")
                    if last or not damaged:
                        return None
                    # Vectors can be made again, so that a damaged file costs time alone.
                    with suppress(OSError, StoreError):
                        self._discard()
                except (OSError, StoreError) as error:
                    self._tell(str(error))
                    return None
                else:
                    self._told = ""
                    return outcome
        return None

    def _opened(self) -> sqlite3.Connection:
        """Return the open file, opened again where another process has replaced it."""
        if self._file is not None:
            # Another process may have thrown a damaged file away and begun the next.
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    return self._file
            self._close()
        with self._alone():
            touch(self._path)
            file = sqlite3.connect(
                self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(file, self._path.name)
                self._inode = self._path.stat().st_ino
            except BaseException:
                file.close()
                raise
            self._file = file
        return file

    def discard(self) -> None:
        """Delete the file; other processes that have it open begin another.

        Raises:
            OSError, StoreError: the disk refused.
        """
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        self._close()
        with self._alone():
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Open or replace the file while no other process does.

        Raises:
            StoreError: another one is at it.
        """
        path = self._path.with_suffix(".lock")
        if self._patient:
            with locked(path):
                yield
            return
        lock = try_lock(path)
        if lock is None:
            raise StoreError(f"{self._path.name} is being opened by another process")
        try:
            yield
        finally:
            let_go(lock)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _is_full(self, file: sqlite3.Connection) -> bool:
        pages, free, size = (
            file.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return bool((pages - free) * size > self._max_bytes)

    def _tell(self, error: str) -> None:
        """Log a failure, a lasting one once."""
        if error != self._told:
            self._told = error
            log.warning("vectors.unused", file=self._path.name, error=error)


def forget(layout: Layout, stem: str) -> None:
    """Remove the vectors of a conversation, whatever the model; where that is refused, those of all.

    Raises:
        StoreError: neither could be done.
    """
    path = layout.workspace / "state" / FILE
    if not path.exists():
        return
    vectors = Vectors(path.parent, busy_s=FORGET_S, patient=True)

    def remove(file: sqlite3.Connection) -> bool:
        file.execute("DELETE FROM vectors WHERE chat = ?", (_chat(stem),))
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return True

    try:
        if not vectors.run(remove):
            vectors.discard()
    except OSError as error:
        raise StoreError(f"{FILE} could not be removed: {error.strerror}", hint=f"look at {path}") from error
    finally:
        vectors.close()


def forget_all(layout: Layout) -> None:
    """Remove the vectors of all conversations.

    Raises:
        StoreError: the disk refused.
    """
    path = layout.workspace / "state" / FILE
    if path.exists():
        try:
            Vectors(path.parent, patient=True).discard()
        except OSError as error:
            cause = f"{FILE} could not be removed: {error.strerror}"
            raise StoreError(cause, hint=f"look at {path}") from error


def _prepare(file: sqlite3.Connection, name: str) -> None:
    (version,) = file.execute("PRAGMA user_version").fetchone()
    check_version(version, VERSION, name, error=NewerFormat)
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=NORMAL")
    file.execute("PRAGMA secure_delete=ON")
    file.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
    if version < VERSION:
        with file:
            file.execute("BEGIN IMMEDIATE")
            file.execute(_TABLE)
            file.execute("CREATE INDEX IF NOT EXISTS chats ON vectors (chat)")
            file.execute(f"PRAGMA user_version={VERSION}")


def _drop_oldest(file: sqlite3.Connection) -> bool:
    """Remove the quarter that was kept first; say whether there was anything."""
    (rows,) = file.execute("SELECT count(*) FROM vectors").fetchone()
    file.execute(
        "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors ORDER BY id LIMIT ?)", (rows // 4 + 1,)
    )
    return bool(rows)


def _chat(stem: str) -> bytes:
    return _digest("chat", stem)[:16]


def _text(model: str, stem: str, text: str) -> bytes:
    return _digest("text", model, stem, text)


def _digest(*parts: str) -> bytes:
    written = (part.encode("utf-8", "surrogatepass") for part in parts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in written)).digest()
