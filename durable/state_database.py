"""The state database ``state/gateway.db``: held by one process, changed in batches; see ``schema.sql``."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from durable.database import Database, Schema
from durable.errors import LockHeld, NewerVersion
from durable.files import open_private
from durable.folders import make_folder
from durable.locks import try_lock

STATE_FILE: Final = "gateway.db"
STATE_LOCK: Final = "lock"
# The number of migrations since the first schema, plus one.
STATE_VERSION: Final = 1
# A longer write-ahead log is cut to this length once its pages are in the file.
_MAX_LOG_BYTES: Final = 16 * 2**20
_SCHEMA: Final = Path(__file__).with_name("schema.sql")


def state_schema(newer: type[NewerVersion] = NewerVersion) -> Schema:
    """Return the tables of ``schema.sql``; ``newer`` is the error for a file of a newer version."""
    return Schema(statements(STATE_FILE), STATE_VERSION, _MAX_LOG_BYTES, newer)


def statements(file: str) -> list[str]:
    """Return the statements of ``schema.sql`` that make the tables of ``gateway.db`` or ``channels.db``."""
    text = _SCHEMA.read_text(encoding="utf-8")
    state, channels = re.split(r"^(?=-- ={40})", text, flags=re.MULTILINE)
    return list(_statements(state if file == STATE_FILE else channels))


class StateDatabase(Database):
    """The open state database. Every method runs in the writing thread, as for ``Database``.

    Rows given to ``later`` are written together, one statement for all rows of a table: each statement costs
    a fight for the interpreter's lock with a busy event loop, each further row of it next to nothing.

    Args:
        folder: ``state/`` of the workspace.
        down: makes the error that a job gets when the disk refused.
        newer: the error for a file of a newer version.
        at: as for ``Database``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        down: Callable[[Exception], Exception],
        newer: type[NewerVersion] = NewerVersion,
        at: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(folder / STATE_FILE, state_schema(newer), down=down, alone=True, at=at)
        self._folder = folder
        self._lock: int | None = None
        self._rows: dict[str, list[Sequence[Any]]] = {}

    def open(self) -> None:
        """Take the lock, then open the file, which is made where there is none.

        Raises:
            LockHeld: another process has the lock or the file; the message names its process id if known.
            NewerVersion: a newer version wrote the file; it was not touched.
            OSError, sqlite3.Error: it cannot be used; lock and file are free again.
        """
        make_folder(self._folder)
        self._lock = _hold(self._folder / STATE_LOCK)
        try:
            super().open()
        except BaseException as error:
            self._release()
            # A process whose lock file somebody removed still holds the file itself.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise _in_use(self._folder, "") from error
            raise

    def close(self) -> None:
        """Close the file, then free the lock. A second call does nothing."""
        try:
            super().close()
        finally:
            self._release()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def later(self, statement: str, row: Sequence[Any]) -> None:
        """Have ``row`` written by ``statement`` before the commit, or before the next ``query``."""
        self._rows.setdefault(statement, []).append(row)

    def query(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement at once, behind all rows that are still to be written."""
        self.flush()
        return self.file.execute(statement, values)

    def flush(self) -> None:
        """Write the rows of ``later``, statement by statement in the order in which each was first given."""
        rows, self._rows = self._rows, {}
        for statement, values in rows.items():
            self.file.executemany(statement, values)

    def _begin(self) -> None:
        # A batch that failed may have left some.
        self._rows.clear()
        super()._begin()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _statements(script: str) -> Iterator[str]:
    """Split a script into its statements."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _hold(path: Path) -> int:
    """Lock ``path`` as long as this process lives, and note its id for a process that comes second."""
    lock = open_private(path)
    if not try_lock(lock):
        note = os.pread(lock, 200, 0)
        os.close(lock)
        raise _in_use(path.parent, _holder(note))
    # On a full disk the lock holds without the note.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, orjson.dumps({"v": STATE_VERSION, "pid": os.getpid()}), 0)
    return lock


def _holder(note: bytes) -> str:
    try:
        return f" (pid {int(orjson.loads(note)['pid'])})"
    except (ValueError, KeyError, TypeError):
        return ""


def _in_use(folder: Path, holder: str) -> LockHeld:
    return LockHeld(
        f"another chat-gateway{holder} uses the state in {folder}",
        hint="wait where it is ending, which chat-gateway status shows; else stop it",
    )
