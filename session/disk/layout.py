"""The files of a workspace: where they lie, which one is open, what stands in it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import durable
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
        """The folder of locks and journals."""
        return self.workspace / "state" / "keys"

    def transcript(self, stem: str) -> Path:
        """The active transcript."""
        return self.sessions / f"{stem}.jsonl"

    def archive(self, stem: str) -> Path:
        """The folder of the ended sessions."""
        return self.workspace / f"sessions/archive/{stem}"

    def lock(self, stem: str) -> Path:
        """The lock file, which also names owner and epoch."""
        return self.keys / f"{stem}.lock"

    def journal(self, stem: str) -> Path:
        """The journal; its suffix is short because stems may be long."""
        return self.keys / f"{stem}.log"

    def index(self, stem: str) -> Path:
        """What is derived of a big transcript, to open it faster; its suffix is short as well."""
        return self.workspace / "state" / "index" / f"{stem}.idx"


class OpenFile(NamedTuple):
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


def opened(fd: int) -> OpenFile:
    """Look which file a descriptor belongs to."""
    found = os.fstat(fd)
    return OpenFile(fd, found.st_dev, found.st_ino)


class OpenFiles:
    """Files that stay open between jobs, the ones used longest ago given up first.

    Whoever takes one has it alone until it is put back, and checks under the lock that its name still
    means it. Used from several threads at once.
    """

    def __init__(self, max_files: int = 256) -> None:
        self._max_files = max_files
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, path: str) -> OpenFile | None:
        """Take the file that was put here under ``path``; None where there is none."""
        with self._guard:
            return self._files.pop(path, None)

    def put(self, path: str, file: OpenFile) -> None:
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


def taken(kept: OpenFiles | None, path: str) -> OpenFile | None:
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


def append_whole(fd: int, data: bytes, *, size: int) -> None:
    """Append ``data`` in one write to a file of ``size`` bytes; what went in by half is cut off again.

    Raises:
        StoreError: the disk refused; the file ends where it ended.
    """
    try:
        durable.append_whole(fd, data, size=size)
    except OSError as error:
        raise StoreError(
            f"append refused: {error.strerror}", hint="free some disk space; nothing was written"
        ) from error


def sync_or_cut(fd: int, size: int) -> None:
    """Sync what was appended to a file of ``size`` bytes; where the disk refuses, it is cut off again.

    Linux calls pages clean that it could not write: they would be read as if they were on disk, and no later
    sync would bring them there.

    Raises:
        OSError: the disk refused.
    """
    try:
        durable.sync_data(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise


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
