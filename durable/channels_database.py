"""The channels database of a workspace, ``state/channels.db``, open in any number of its processes.

``schema.sql`` describes the tables. Versions of SQLite before 3.51.3 can lose a commit beside which another
process makes a checkpoint. So SQLite makes none by itself: a writer makes them while it holds the lock file
that every commit needs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from durable import clock
from durable.database import Database, Job, Schema, in_memory, reading
from durable.errors import NewerVersion
from durable.files import open_private
from durable.folders import make_folder
from durable.locks import try_lock, unlock
from durable.state import check_version
from durable.state_database import statements

T = TypeVar("T")
CHANNELS_FILE: Final = "channels.db"
# The number of migrations since the first schema, plus one.
_VERSION: Final = 1
_LOCK: Final = "channels.lock"
# The write-ahead log is emptied by the commit with which it gets this long.
_LOG_BYTES: Final = 8 * 2**20
# For the lock, which others hold for the time of a commit.
_WAIT_S: Final = 5.0
_POLL_S: Final = 0.001
# For a reader that keeps a checkpoint from ending.
_BUSY_S: Final = 1.0


def channels_schema(newer: type[NewerVersion] = NewerVersion) -> Schema:
    """Return the tables of ``schema.sql``; ``newer`` is the error for a file of a newer version."""
    return Schema(statements(CHANNELS_FILE), _VERSION, _LOG_BYTES, newer)


class _Locked(sqlite3.OperationalError):
    """The lock is not to be had."""


class ChannelsDatabase(Database):
    """One connection to the channels database. Every method runs in the same thread, as for ``Database``.

    Args:
        folder: ``state/`` of the workspace.
        down: makes the error that a job gets when the disk refused, or the lock was not free in time.
        newer: the error for a file of a newer version.
    """

    def __init__(
        self,
        folder: Path,
        *,
        down: Callable[[Exception], Exception],
        newer: type[NewerVersion] = NewerVersion,
    ) -> None:
        schema = channels_schema(newer)
        super().__init__(folder / CHANNELS_FILE, schema, down=down, busy_s=_BUSY_S, retry_each=True)
        self._folder = folder
        self._lock = -1
        self._checkpoint_at = _LOG_BYTES

    def open(self) -> None:
        """Open the file, which is made where there is none.

        Raises:
            NewerVersion: as ``newer``; a newer version wrote the file, it was not touched.
            OSError, sqlite3.Error: it cannot be used, or another process holds the lock; it is closed again.
        """
        make_folder(self._folder)
        self._lock = open_private(self._folder / _LOCK)
        try:
            with self._writing():
                super().open()
                self.file.execute("PRAGMA wal_autocheckpoint=0")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; whoever closes it last empties its log. A second call does nothing."""
        try:
            # Where a stopped process holds the lock it has the file open as well, so this is not the last.
            with contextlib.suppress(sqlite3.Error), contextlib.ExitStack() as held:
                if self._lock >= 0:
                    held.enter_context(self._writing(wait_s=_BUSY_S))
                super().close()
            super().close()
        finally:
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work`` in a transaction of its own, and return its result once that is on disk.

        Raises:
            Exception: what ``work`` raised, or what ``down`` makes of the disk's refusal.
        """
        results: list[T] = []
        (outcome,) = self.commit([Job(lambda: results.append(work(self.file)))])
        if isinstance(outcome, Exception):
            raise outcome
        return results[-1]

    def compact(self) -> None:
        """As ``Database.compact``, under the lock."""
        with self._writing():
            super().compact()

    def _run(self, jobs: Sequence[Job], indexes: Sequence[int], outcomes: list[object]) -> None:
        with self._writing():
            super()._run(jobs, indexes, outcomes)
            self._bound_log()

    def _bound_log(self) -> None:
        """Empty the write-ahead log where it is long."""
        log = self._path.with_name(f"{CHANNELS_FILE}-wal")
        # The jobs are committed by now, whatever the disk says of its files.
        with contextlib.suppress(OSError):
            if log.stat().st_size >= self._checkpoint_at:
                super()._empty_log()
                # One that a reader needed all the time is left until it has grown by as much again.
                self._checkpoint_at = log.stat().st_size + _LOG_BYTES

    def _empty_log(self) -> None:
        with contextlib.suppress(sqlite3.Error), self._writing(wait_s=0.0):
            super()._empty_log()

    def _after_failure(self, job: Job, error: sqlite3.Error, *, of: int) -> object:
        # A lock for which a whole batch has waited is not waited for once more by each of its jobs.
        return super()._after_failure(job, error, of=1 if isinstance(error, _Locked) else of)

    @contextlib.contextmanager
    def _writing(self, *, wait_s: float = _WAIT_S) -> Iterator[None]:
        """Hold the lock. Raises _Locked where others hold it for ``wait_s`` seconds, or the disk refuses."""
        until = clock.monotonic() + wait_s
        try:
            while not try_lock(self._lock):
                if clock.monotonic() >= until:
                    raise _Locked(f"{_LOCK} is held by another process")
                clock.pause(_POLL_S)
        except OSError as error:
            raise _Locked(f"{_LOCK} cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                unlock(self._lock)


@contextlib.contextmanager
def open_channels(
    folder: Path, *, down: Callable[[Exception], Exception], newer: type[NewerVersion] = NewerVersion
) -> Iterator[ChannelsDatabase]:
    """Open the channels database of ``state/`` for one piece of work in a thread or a command.

    Raises:
        NewerVersion: as ``newer``.
        Exception: what ``down`` makes of a refusal of the disk.
    """
    database = ChannelsDatabase(folder, down=down, newer=newer)
    try:
        database.open()
        yield database
    except (OSError, sqlite3.Error) as error:
        raise down(error) from error
    finally:
        database.close()


@contextlib.contextmanager
def reading_channels(
    folder: Path, *, down: Callable[[Exception], Exception], newer: type[NewerVersion] = NewerVersion
) -> Iterator[sqlite3.Connection]:
    """Open the channels database of ``state/`` to look at it alone; where there is none its tables are empty.

    Raises:
        NewerVersion: as ``newer``.
        Exception: what ``down`` makes of a file that cannot be read.
    """
    path = folder / CHANNELS_FILE
    try:
        with contextlib.ExitStack() as opened:
            version = 0
            with contextlib.suppress(FileNotFoundError):
                path.stat()
                file = opened.enter_context(reading(path))
                version = int(file.execute("PRAGMA user_version").fetchone()[0])
                check_version(version, _VERSION, str(path), error=newer)
            # Whoever makes the file may have been killed before its tables were in it.
            yield file if version else opened.enter_context(in_memory(channels_schema()))
    except (OSError, sqlite3.Error) as error:
        raise down(error) from error
