"""Small files that people edit, read when they have changed; for threads."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import durable
from durable import BoundedDict
from session.disk.layout import Seen

T = TypeVar("T")

# So much of one file is kept; a longer one is cut.
MAX_BYTES = 256 * 1024
KEPT = 2_000
# A file this young may change again without a new time: clocks of file systems are coarse.
YOUNG_NS = 2 * 10**9


class FileCache(Generic[T]):
    """Keeps what ``read`` makes of a file's bytes as long as its (inode, size, mtime_ns) stay."""

    def __init__(
        self,
        read: Callable[[Path, bytes], T],
        *,
        max_bytes: int = MAX_BYTES,
        take: Callable[[BinaryIO], bytes] | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            read: makes of a file's bytes what is kept.
            max_bytes: how much of a file is read.
            take: reads the bytes instead, where their number is not the same for each file.
        """
        self._read = read
        self._take = take or (lambda file: file.read(max_bytes))
        self._kept: BoundedDict[Path, tuple[Seen, T]] = BoundedDict(KEPT)
        self._lock = threading.Lock()

    def get(self, path: Path) -> T | None:
        """Return what the file is; None where there is no regular file that can be read."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            found = os.fstat(fd)
            # Of a folder no file object could be made.
            if not stat.S_ISREG(found.st_mode):
                return None
            now: Seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            with self._lock:
                known = self._kept.use(path)
                if known is not None and known[0] == now:
                    return known[1]
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = self._take(file)
        except OSError:
            return None
        finally:
            os.close(fd)
        value = self._read(path, data)
        if durable.wall_ns() - found.st_mtime_ns > YOUNG_NS:
            self._keep(path, now, value)
        return value

    def _keep(self, path: Path, now: Seen, value: T) -> None:
        with self._lock:
            self._kept[path] = (now, value)


def text(path: Path, data: bytes) -> str:
    """Read a file as text, odd bytes replaced."""
    return data.decode("utf-8", "replace").removeprefix("\ufeff")
