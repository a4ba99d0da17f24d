"""Whole writes, private files, synced folders: the few operations that everything durable is made of."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from session.errors import StoreError

Seen = tuple[int, int, int]  # inode, size, mtime_ns: another value means that somebody else wrote
_COPY_BYTES = 2**26
_LINES = 1000


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
        """The folder of locks and journals."""
        return self.workspace / "state" / "keys"

    def transcript(self, stem: str) -> Path:
        """The active transcript."""
        return self.sessions / f"{stem}.jsonl"

    def archive(self, stem: str) -> Path:
        """The folder of the ended sessions."""
        return self.sessions / "archive" / stem

    def lock(self, stem: str) -> Path:
        """The lock file, which also names owner and epoch."""
        return self.keys / f"{stem}.lock"

    def journal(self, stem: str) -> Path:
        """The journal; its suffix is short because stems may be long."""
        return self.keys / f"{stem}.log"

    def index(self, stem: str) -> Path:
        """What is derived of a big transcript, to open it faster; its suffix is short as well."""
        return self.workspace / "state" / "index" / f"{stem}.idx"


class File(NamedTuple):
    """An open file, and which one it is: while it is open, no other file can have its numbers."""

    fd: int
    device: int
    inode: int

    def is_at(self, path: str) -> bool:
        """Say whether ``path`` still names it."""
        try:
            there = os.stat(path)  # noqa: PTH116 - a path object costs as much as the call
        except FileNotFoundError:
            return False
        return there.st_ino == self.inode and there.st_dev == self.device


def opened(fd: int) -> File:
    """Look which file a descriptor belongs to."""
    found = os.fstat(fd)
    return File(fd, found.st_dev, found.st_ino)


class OpenFiles:
    """Files that stay open between jobs, the ones used longest ago given up first.

    Whoever takes one has it alone until it is put back, and checks under the lock that its name still
    means it. Used from several threads at once.
    """

    def __init__(self, max_files: int = 256) -> None:
        self._max_files = max_files
        self._files: OrderedDict[str, File] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, path: str) -> File | None:
        """Take the file that was put here under ``path``; None where there is none."""
        with self._guard:
            return self._files.pop(path, None)

    def put(self, path: str, file: File) -> None:
        """Keep a file for the next job, in place of one that is already here."""
        with self._guard:
            given_up = self._files.pop(path, None)
            self._files[path] = file
            if given_up is None and len(self._files) > self._max_files:
                given_up = self._files.popitem(last=False)[1]
        if given_up is not None:
            os.close(given_up.fd)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close what is here, and keep nothing from now on."""
        with self._guard:
            self._max_files = 0
            files, self._files = list(self._files.values()), OrderedDict()
        for file in files:
            os.close(file.fd)


def taken(kept: OpenFiles | None, path: str) -> File | None:
    """Take a file as it was left open, else open it to write at its end; None where there is none.

    Raises:
        StoreError: it cannot be opened.
    """
    if kept is not None and (file := kept.take(path)) is not None:
        return file
    try:
        return opened(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{Path(path).name} cannot be opened: {error.strerror}") from error


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


def private_folder(path: Path) -> None:
    """Make ``path`` and its missing parents, for the owner's eyes alone, and sync their parents."""
    if path.is_dir():
        return
    private_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # whatever the umask
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Open a new private file for writing, in place of a stale one; it is removed if the block fails."""
    discard(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        yield fd
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, or raise OSError."""
    view = memoryview(data)
    while view:
        written = os.write(fd, view)
        if written == 0:
            raise OSError("the disk took no bytes")
        view = view[written:]


def write_lines(fd: int, lines: Iterable[bytes]) -> None:
    """Write lines with their newlines, some at a time, or raise OSError."""
    rest = iter(lines)
    while some := list(islice(rest, _LINES)):
        write_all(fd, b"".join(raw + b"\n" for raw in some))


def append_whole(fd: int, data: bytes, *, size: int) -> None:
    """Append ``data`` in one write to a file of ``size`` bytes; what went in by half is cut off again.

    Raises:
        StoreError: the disk refused; the file ends where it ended.
    """
    try:
        written = os.write(fd, data)
        cause: OSError | None = None
    except OSError as error:
        written, cause = 0, error
    if written == len(data):
        return
    with contextlib.suppress(OSError):
        os.ftruncate(fd, size)
    words = cause.strerror if cause is not None else "short write"
    raise StoreError(f"append refused: {words}", hint="free some disk space; nothing was written") from cause


def begin_sync(fd: int, offset: int) -> None:
    """Have the kernel begin to write what stands from ``offset`` on; the sync that follows waits for less.

    Of several files each is begun before any is synced: one commit of the file system then serves them all.
    """
    with contextlib.suppress(OSError):  # advice only: the sync says what was wrong
        os.posix_fadvise(fd, offset, 0, os.POSIX_FADV_DONTNEED)


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
        raise StoreError(f"{path.name} cannot be read: {error.strerror}", hint=f"look at {path}") from error
    try:
        return read_fd(fd, path.name)
    finally:
        os.close(fd)


def read_fd(fd: int, name: str) -> tuple[bytes, Seen]:
    """Read an open file from its start; appends of others that come meanwhile belong to the next look."""
    try:
        found = os.fstat(fd)
        pieces, at = [], 0
        while at < found.st_size:
            piece = os.pread(fd, found.st_size - at, at)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error.strerror}") from error
    return b"".join(pieces), (found.st_ino, at, found.st_mtime_ns)


def discard(path: Path) -> None:
    """Remove a temporary file or folder; nothing there is fine."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)
