"""A SQLite file of things that are derived: shared by processes, begun anew where it is damaged."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from durable import make_folder, touch
from session.disk.state import let_go, locked, try_lock
from session.errors import NewerFormat, StoreError

T = TypeVar("T")
log = structlog.get_logger("derived")

MAX_WAL_BYTES = 2**20
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class DerivedFile:
    """One SQLite file that may be lost at any time; for threads.

    Several processes may use it. Where it is damaged it is begun anew; where the disk refuses or another
    process is in the way, nothing is done. Only ``open`` raises.

    Args:
        path: the file; a lock file of its name lies beside it.
        prepare: makes the tables in a file that was just opened, or finds that they are there.
        busy_s: how long another process is waited for.
        patient: one that opens the file at this moment is waited for, too.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        *,
        busy_s: float,
        patient: bool = False,
    ) -> None:
        self.path = path
        self._prepare = prepare
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
                log.debug("derived.unopened", file=self.path.name, error=str(error))

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
                    with suppress(OSError, StoreError):
                        self._discard()
                except (OSError, StoreError) as error:
                    self._tell(str(error))
                    return None
                else:
                    self._told = ""
                    return outcome
        return None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def discard(self) -> None:
        """Delete the file; other processes that have it open begin another.

        Raises:
            OSError, StoreError: the disk refused.
        """
        with self._lock:
            self._discard()

    def _opened(self) -> sqlite3.Connection:
        """Return the open file, opened again where another process has replaced it."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    return self._file
            self._close()
        make_folder(self.path.parent)
        with self._alone():
            touch(self.path)
            file = sqlite3.connect(
                self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(file)
                self._inode = self.path.stat().st_ino
            except BaseException:
                file.close()
                raise
            self._file = file
        return file

    def _discard(self) -> None:
        self._close()
        with self._alone():
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Open or replace the file while no other process does.

        Raises:
            StoreError: another one is at it.
        """
        path = self.path.with_suffix(".lock")
        if self._patient:
            with locked(path):
                yield
            return
        lock = try_lock(path)
        if lock is None:
            raise StoreError(f"{self.path.name} is being opened by another process")
        try:
            yield
        finally:
            let_go(lock)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _tell(self, error: str) -> None:
        """Log a failure, a lasting one once."""
        if error != self._told:
            self._told = error
            log.warning("derived.unused", file=self.path.name, error=error)


def is_damaged(path: Path) -> bool:
    """Say whether a SQLite file is none, or torn; one that another process holds alone is not looked at."""
    try:
        file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)
        try:
            return bool(file.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")
        finally:
            file.close()
    except sqlite3.Error as error:
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED - {sqlite3.SQLITE_ERROR}


def searches_texts() -> bool:
    """Say whether the SQLite of this machine was built with what searches texts."""
    file = sqlite3.connect(":memory:")
    try:
        file.execute("CREATE VIRTUAL TABLE texts USING fts5 (text)")
    except sqlite3.OperationalError:
        return False
    finally:
        file.close()
    return True


def set_up(file: sqlite3.Connection) -> None:
    """Let several processes read and write, and let no deleted byte stay."""
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=NORMAL")
    file.execute("PRAGMA secure_delete=ON")
    file.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
