"""Opens, reads and replaces files below a folder, and can reach nothing above it; for tools.

A path is opened one name at a time below an open folder, links never followed: whatever another
process renames or links meanwhile, no step can leave.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Final, TypeVar

import durable
from session.errors import ToolError
from session.transcript.agent import scopes_below

T = TypeVar("T")

# The loop's own threads, six on two cores, serve what is sent, leases, cursors and the clock of the jobs.
THREADS: Final = 8
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")


async def off_loop(work: Callable[[], T]) -> T:
    """Run ``work`` in one of the threads, in the order in which it was asked for."""
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, work)


MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_FOLDERS = 32

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a pipe in the folder would hold the thread until somebody writes into it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TEMP_PREFIX, _TEMP_SUFFIX = ".chat-gateway-", ".tmp"
_TEMP_LIFE_S = 3600
_LOCK_WAIT_S = 10.0
_LOCK_POLL_S = 0.01
_SAID = {
    errno.ENOENT: "there is no such file or folder",
    errno.ELOOP: "it is a link, and links are not followed",
    errno.ENOTDIR: "a part of the path is not a folder, or is a link",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "permission denied",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be too large",
    errno.ENXIO: "it is not a regular file",
}


async def threaded(path: str, work: Callable[[], T]) -> T:
    """Run ``work`` off the loop; what the system refuses becomes a sentence that names only ``path``."""
    try:
        return await off_loop(work)
    except OSError as error:
        said = _SAID.get(error.errno or 0, os.strerror(error.errno or 0))
        raise ToolError(f"{path}: {said}") from error


def names_of(folder: Path, path: str) -> list[str]:
    """Split a path into the names below ``folder``."""
    if "\0" in path or any("\ud800" <= c <= "\udfff" for c in path):
        raise ToolError("the path contains characters that are not allowed in file names")
    if path.startswith("/"):
        top = str(folder)
        if path != top and not path.startswith(top + "/"):
            raise ToolError(f"{path}: outside the files folder; use a relative path")
        path = path[len(top) :]
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not names:
                raise ToolError(f"{path}: outside the files folder")
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if names and names[0].casefold() in scopes_below(folder):
        raise FileNotFoundError(errno.ENOENT, "outside of this scope")
    return names


@contextmanager
def below(folder: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder that ``names`` lead to, following no link, and close it at the end."""
    durable.make_folder(folder)
    with durable.opened_below(folder, names, make=make) as fd:
        yield fd


def open_folder(fd: int, name: str) -> int:
    """Open a folder within an open one; a link is none."""
    return os.open(name, _FOLDER, dir_fd=fd)


def read_file(folder: Path, path: str) -> bytes:
    """Read a text file.

    Raises:
        ToolError, OSError: there is none, it is too large, or it is no text.
    """
    names = _file_names(folder, path)
    with below(folder, names[:-1]) as parent:
        return read_in(parent, names[-1], path)


def write_file(folder: Path, path: str, data: bytes) -> None:
    """Put ``data`` in the place of a file, missing folders made; on return it survives a power cut.

    Raises:
        ToolError, OSError: the old file stands.
    """
    names = _file_names(folder, path)
    if len(names) - 1 > MAX_FOLDERS:
        raise ToolError(f"{path}: over {MAX_FOLDERS} folders deep; use a shorter path")
    with below(folder, names[:-1], make=True) as parent:
        # A change that has read the old text would put it back.
        _lock(parent, path)
        _replace(parent, names[-1], path, data)


def change_file(folder: Path, path: str, change: Callable[[bytes], bytes]) -> None:
    """Replace a text file by what ``change`` makes of it; of two changes at once the second sees the first.

    Raises:
        ToolError, OSError: the old file stands.
    """
    names = _file_names(folder, path)
    with below(folder, names[:-1]) as parent:
        # The lock is let go when the folder is closed, by a kill as well.
        _lock(parent, path)
        _replace(parent, names[-1], path, change(read_in(parent, names[-1], path)))


def read_in(parent: int, name: str, path: str) -> bytes:
    """Read a text file of an open folder; ``path`` is what it is called in an error."""
    fd = os.open(name, _FILE, dir_fd=parent)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(
                f"{path}: it is {'a folder' if stat.S_ISDIR(status.st_mode) else 'not a regular file'}"
            )
        # Of a folder no file object is made, and its descriptor would stay open.
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"{path}: over {MAX_FILE_BYTES} bytes, too large to read")
    if b"\0" in data[:8192]:
        raise ToolError(f"{path}: not a text file")
    return data


def _file_names(folder: Path, path: str) -> list[str]:
    names = names_of(folder, path)
    if not names or path.endswith("/"):
        raise ToolError(f"{path}: it is a folder")
    if len(os.fsencode(names[-1])) > 255:
        raise OSError(errno.ENAMETOOLONG, "name too long")
    return names


def _lock(parent: int, path: str) -> None:
    until = durable.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if durable.monotonic() > until:
                raise ToolError(
                    f"{path}: another process is changing files in this folder; try again"
                ) from None
            durable.pause(_LOCK_POLL_S)


def _replace(parent: int, name: str, path: str, data: bytes) -> None:
    mode = _mode_of(parent, name, path)
    _sweep(parent)
    temp = f"{_TEMP_PREFIX}{durable.token_hex(8)}{_TEMP_SUFFIX}"
    durable.replace_below(parent, name, data, temp=temp, mode=mode)


def _mode_of(parent: int, name: str, path: str) -> int:
    """Return the permissions to give; a rename would not follow a link, so a late swap harms nothing."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0o600
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{path}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path}: it is not a regular file; links are not followed")
    return stat.S_IMODE(status.st_mode) & 0o777


def _sweep(parent: int) -> None:
    """Remove what writes that were killed an hour ago or earlier left behind."""
    for name in os.listdir(parent):
        if is_temp(name):
            with suppress(OSError):
                if (
                    durable.wall_s() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime
                    > _TEMP_LIFE_S
                ):
                    os.unlink(name, dir_fd=parent)


def is_temp(name: str) -> bool:
    """Say whether a file is one that a write has not finished."""
    return name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)
