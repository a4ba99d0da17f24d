"""The files of a workspace: where they lie, what stands in them, and a cache of small ones."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import durable
from durable import BoundedDict
from session.errors import StoreError

# Inode, size, mtime_ns: another value means that somebody else wrote.
Seen = tuple[int, int, int]
_COPY_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of a workspace lie."""

    workspace: Path

    @property
    def sessions(self) -> Path:
        """The folder of the active transcripts."""
        return self.workspace / "sessions"

    @property
    def keys(self) -> Path:
        """The folder of the locks of keys."""
        return self.workspace / "state" / "keys"

    def transcript(self, stem: str) -> Path:
        """The active transcript."""
        return self.sessions / f"{stem}.jsonl"

    def archive(self, stem: str) -> Path:
        """The folder of the ended sessions."""
        return self.workspace / f"sessions/archive/{stem}"

    def lock(self, stem: str) -> Path:
        """The lock file; its suffix is short because stems may be long."""
        return self.keys / f"{stem}.lock"

    def index(self, stem: str) -> Path:
        """What is derived of a big transcript, to open it faster; its suffix is short as well."""
        return self.workspace / "state" / "index" / f"{stem}.idx"


def seen(path_or_fd: Path | str | int) -> Seen | None:
    """Look at a file; None where there is none.

    Raises:
        StoreError: the way to it is barred.
    """
    try:
        found = os.stat(path_or_fd)  # noqa: PTH116 - also of a descriptor
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path_or_fd} cannot be reached: {error.strerror}") from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def copy_rest(source: int, target: int, offset: int, *, until: int | None = None) -> None:
    """Let the kernel copy ``source`` from ``offset`` on (to ``until``) to the end of ``target``."""
    end = os.fstat(source).st_size if until is None else until
    while offset < end:
        copied = os.sendfile(target, source, offset, min(end - offset, _COPY_BYTES))
        if copied == 0:
            raise OSError("the file became shorter while it was copied")
        offset += copied


def read_file(path: Path) -> tuple[bytes, Seen] | None:
    """Read a whole file together with what it was when it was read; None where there is none.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}", hint=f"check {path}") from error
    try:
        return read_fd(fd, path.name)
    finally:
        os.close(fd)


def read_fd(fd: int, name: str) -> tuple[bytes, Seen]:
    """Read an open file from its start; appends of others that come meanwhile belong to the next look."""
    found = os.fstat(fd)
    data = pread(fd, found.st_size, 0, name)
    return data, (found.st_ino, len(data), found.st_mtime_ns)


def pread(fd: int, size: int, offset: int, name: str = "a transcript") -> bytes:
    """Read ``size`` bytes of a file, fewer only where it ends.

    Raises:
        StoreError: the disk refused.
    """
    pieces = []
    try:
        while size > 0 and (piece := os.pread(fd, size, offset)):
            pieces.append(piece)
            size -= len(piece)
            offset += len(piece)
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error.strerror}", hint="check the disk") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
