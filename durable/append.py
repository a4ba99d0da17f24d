"""Bytes at the end of a file: in one write or not at all."""

from __future__ import annotations

import contextlib
import errno
import os


def append_whole(fd: int, data: bytes, *, size: int) -> None:
    """Append ``data`` in one write to a file of ``size`` bytes; what went in by half is cut off again.

    Raises:
        OSError: the disk refused; the file ends where it ended.
    """
    try:
        written = os.write(fd, data)
        cause: OSError | None = None
    except OSError as error:
        written, cause = 0, error
    if written == len(data):
        return
    # Half of a line would be joined by the next append to one that nobody can read.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, size)
    raise cause if cause is not None else OSError(errno.ENOSPC, "short write")


def begin_sync(fd: int, offset: int) -> None:
    """Have the kernel begin to write what stands from ``offset`` on; the sync that follows waits for less.

    Of several files each is begun before any is synced: one commit of the file system then serves them all.
    """
    # Advice only, and not known to macOS: the sync says what was wrong.
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(fd, offset, 0, os.POSIX_FADV_DONTNEED)
