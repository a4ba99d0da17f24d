"""Locks of the kernel's on files: free as soon as their holder is dead, whatever killed it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from durable import clock
from durable.errors import LockHeld
from durable.files import open_private
from durable.folders import make_folder

WAIT_S = 10.0
_POLL_S = 0.01


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file, unless somebody has it.

    Any number may have it ``shared``, while nobody has it alone.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        # Some network shares say EACCES of a lock that is taken.
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def is_free(fd: int) -> bool:
    """Say whether nobody has the lock of an open file, by taking it for a moment."""
    free = try_lock(fd)
    if free:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return free


def unlock(fd: int) -> None:
    """Free the lock of an open file, also where a process that is just being started has its descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(fd: int, path: Path) -> bool:
    """Say whether an open file still has this name: another may have removed or replaced it."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def take_lock(path: Path) -> int | None:
    """Take a lock file, made where there is none; return its descriptor, None while another holds it.

    Raises:
        OSError: it cannot be opened.
    """
    make_folder(path.parent)
    fd = open_private(path)
    try:
        if try_lock(fd):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold a lock file, waiting for whoever holds it; for threads and one-shot commands.

    Raises:
        LockHeld: somebody else has held it for ``wait_s`` seconds, as only a stopped process does.
        OSError: it cannot be opened.
    """
    until = clock.monotonic() + wait_s
    while (fd := take_lock(path)) is None:
        if clock.monotonic() >= until:
            raise LockHeld(
                f"{path.name} is held by another process",
                hint="look for a suspended process of this workspace",
            )
        clock.pause(_POLL_S)
    try:
        yield
    finally:
        try:
            unlock(fd)
        finally:
            os.close(fd)
