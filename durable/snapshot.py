"""Copies of SQLite files that others write meanwhile: what one of their commits left; it holds up nobody."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

from durable import clock
from durable.database import settle_copy
from durable.files import new_file, write_all

_TRIES = 200
_PAUSE_S = 0.02
# The clock of a file system moves in steps: what was written within one looks unchanged.
_STEP_NS = 50_000_000
_BLOCK = 2**20
# The head of a write-ahead log has its salt, which changes whenever the log is begun anew.
_HEAD = 32
# Which file, how long, when changed.
_Look = tuple[int, int, int]


def snapshot(path: Path, target: Path) -> None:
    """Copy a file in WAL mode as of one of its commits; ``target`` is one file without a log.

    It asks for no lock, so that it works beside a daemon that keeps all others out, and delays no write.
    Whatever a checkpoint moves into the file while that is read stands in the log as well, and the log is
    read behind the file: so both make up a commit, unless the log was begun anew in between. That shows at
    its head, and both are read again.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it was damaged before.
        OSError: it cannot be read, the copy not written, or it never held still.
    """
    for _ in range(_TRIES):
        if _copied(path, target):
            settle_copy(target)
            return
        clock.pause(_PAUSE_S)
    raise OSError(errno.EBUSY, "it changes all the time", str(path))


def _copied(path: Path, target: Path) -> bool:
    """Copy file and log; False where they may not belong together."""
    log = path.with_name(f"{path.name}-wal")
    with path.open("rb") as file:
        before, head = _look(file), _head(log)
        if not head and clock.wall_ns() - before[2] < _STEP_NS:
            return False
        _copy(file, target)
        log_copy = target.with_name(f"{target.name}-wal")
        log_copy.unlink(missing_ok=True)
        if head:
            try:
                with log.open("rb") as source:
                    _copy(source, log_copy)
            except FileNotFoundError:
                return False
        # Without a log only the file itself tells whether there was one meanwhile.
        same_file = path.stat().st_ino == before[0] and (bool(head) or _look(file) == before)
        return same_file and _head(log) == head


def _look(file: BinaryIO) -> _Look:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


def _head(log: Path) -> bytes:
    """Return what tells one life of a log from the next; empty: there is none."""
    try:
        with log.open("rb") as file:
            head = file.read(_HEAD)
            return head + str(os.fstat(file.fileno()).st_ino).encode() if head else b""
    except FileNotFoundError:
        return b""


def _copy(source: BinaryIO, target: Path) -> None:
    left = os.fstat(source.fileno()).st_size
    with new_file(target) as fd:
        while left > 0 and (block := source.read(min(_BLOCK, left))):
            write_all(fd, block)
            left -= len(block)
