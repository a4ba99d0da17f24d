"""Private files: made, opened, written in full, taken away."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from durable import clock
from durable.folders import OPEN_FOLDER
from durable.owner import give, keep_owner, named, owner_of

_LINES = 1000
# Bytes of a file's name that stand in the name of its temporary one.
_NAME_MAX = 200
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 3


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file, made with mode 0600 where there is none; return its descriptor.

    Raises:
        OSError: it cannot be opened.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags | os.O_CLOEXEC)
        # Another process was quicker: its file is opened.
        with contextlib.suppress(FileExistsError):
            return _made(path, flags)
    raise FileExistsError(errno.EEXIST, "it can be neither opened nor created", str(path))


def touch(path: Path) -> None:
    """Make an empty private file where there is none.

    One that is there is not even opened: SQLite's locks are the process's, and closing any descriptor of
    the file lets go of all of them.
    """
    with contextlib.suppress(FileExistsError):
        os.close(_made(path, os.O_RDWR))


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Open a new private file for writing, in place of a stale one; it is removed if the block fails."""
    discard(path)
    fd = create(path, os.O_RDWR | _NEW)
    try:
        yield fd
    except BaseException:
        # A disk that refused the content may refuse this too; the first error is the one to tell.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def create(path: Path, flags: int, *, inherit: bool = True) -> int:
    """Open a file that is made, or may be, with mode 0600 and, to ``inherit``, the owner of its folder."""
    if os.geteuid() != 0 or not inherit:
        fd = os.open(path, flags, 0o600)
        os.fchmod(fd, 0o600)
        return fd
    # By the open folder: a path may lead elsewhere by the time that its owner is looked up.
    folder = os.open(path.parent, OPEN_FOLDER)
    try:
        with named(path):
            fd = os.open(path.name, flags, 0o600, dir_fd=folder)
        try:
            os.fchmod(fd, 0o600)
            keep_owner(fd, folder)
        except BaseException:
            os.close(fd)
            raise
        return fd
    finally:
        os.close(folder)


def _made(path: Path, flags: int) -> int:
    """Make a file that has its owner before it has its name. Raises FileExistsError."""
    if os.geteuid() != 0:
        return create(path, flags | _NEW)
    folder = os.open(path.parent, OPEN_FOLDER)
    try:
        owner = owner_of(folder)
        if owner is None:
            return create(path, flags | _NEW)
        # Root killed between the making and the giving away would leave a lock that the service cannot open.
        short = os.fsdecode(os.fsencode(path.name)[:_NAME_MAX])
        aside = f".{short}.{clock.token_hex(8)}.tmp"
        with named(path):
            fd = os.open(aside, flags | _NEW, 0o600, dir_fd=folder)
        try:
            os.fchmod(fd, 0o600)
            give(fd, owner)
            with named(path):
                os.link(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(fd)
            raise
        finally:
            os.unlink(aside, dir_fd=folder)
        return fd
    finally:
        os.close(folder)


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, or raise OSError."""
    view = memoryview(data)
    while view:
        written = os.write(fd, view)
        if written == 0:
            raise OSError("the disk accepted no bytes")
        view = view[written:]


def write_lines(fd: int, lines: Iterable[bytes]) -> None:
    """Write lines with their newlines, some at a time, or raise OSError."""
    rest = iter(lines)
    while some := list(islice(rest, _LINES)):
        write_all(fd, b"".join(raw + b"\n" for raw in some))


def discard(path: Path) -> None:
    """Remove a temporary file or folder; nothing there is fine."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    # Of a folder Linux says the one, macOS the other.
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)
