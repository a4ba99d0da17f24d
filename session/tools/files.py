"""Tools that read, write and list files, and can reach nothing above the folder they are given.

A path is opened one name at a time below an open folder, links never followed: whatever another
process renames or links meanwhile, no step can leave.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from session.errors import ToolError
from session.models import ToolSpec
from session.tools import MAX_RESULT_BYTES, Place

T = TypeVar("T")

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_ENTRIES = 2_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMP_PREFIX, _TEMP_SUFFIX = ".chat-gateway-", ".tmp"
_TEMP_LIFE_S = 3600
_NOTE_ROOM = 200
_PATH = {"type": "string", "description": "Path below the files folder, for example notes/today.txt"}
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


class Read:
    """The tool ``read``: lines of a text file."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "read",
        "Read a text file. Long files come in parts; the result says how to ask for the next.",
        {
            "type": "object",
            "properties": {
                "path": _PATH,
                "offset": {"type": "integer", "minimum": 1, "description": "First line, from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines"},
            },
            "required": ["path"],
        },
    )

    async def run(self, arguments: Mapping[str, Any], place: Place) -> str:
        """Return the asked lines, at most 64 kB of them."""
        path = arguments["path"]
        data = await _threaded(path, lambda: _read_file(place.folder, path))
        return _page(data, first=arguments.get("offset", 1), limit=arguments.get("limit"))


class Write:
    """The tool ``write``: a whole file, replaced in one step."""

    repeatable: ClassVar[bool] = False
    spec: ClassVar[ToolSpec] = ToolSpec(
        "write",
        "Write a text file, replacing what it held; missing folders are made.",
        {
            "type": "object",
            "properties": {"path": _PATH, "content": {"type": "string", "description": "The whole text"}},
            "required": ["path", "content"],
        },
    )

    async def run(self, arguments: Mapping[str, Any], place: Place) -> str:
        """Replace the file; on return it survives a power cut."""
        path = arguments["path"]
        data = arguments["content"].encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{path}: over {MAX_FILE_BYTES} bytes; nothing was written")
        await _threaded(path, lambda: _write_file(place.folder, path, data))
        return f"wrote {len(data)} bytes to {path}"


class Ls:
    """The tool ``ls``: the names in a folder."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "ls",
        "List a folder: one name a line, folders end with /, files with their size in bytes.",
        {"type": "object", "properties": {"path": {**_PATH, "description": "Folder, . for the top"}}},
    )

    async def run(self, arguments: Mapping[str, Any], place: Place) -> str:
        """Return the names in alphabetical order."""
        path = arguments.get("path", ".")
        return await _threaded(path, lambda: _list_folder(place.folder, path))


async def _threaded(path: str, work: Callable[[], T]) -> T:
    """Run ``work`` off the loop; what the system refuses becomes a sentence that names only ``path``."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        said = _SAID.get(error.errno or 0, os.strerror(error.errno or 0))
        raise ToolError(f"{path}: {said}") from error


def _names(folder: Path, path: str) -> list[str]:
    """Split a path into the names below ``folder``."""
    if "\0" in path or any("\ud800" <= c <= "\udfff" for c in path):
        raise ToolError("the path holds characters that no file name can have")
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
    return names


@contextmanager
def _below(folder: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder that ``names`` lead to, following no link, and close it at the end."""
    _make_top(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            fd = _step(fd, name, make=make)
        yield fd
    finally:
        os.close(fd)


def _step(fd: int, name: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
            os.fsync(fd)
    deeper = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return deeper


def _make_top(folder: Path) -> None:
    if not folder.is_dir():
        if folder.parent != folder:
            _make_top(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _read_file(folder: Path, path: str) -> bytes:
    names = _names(folder, path)
    if not names:
        raise ToolError(f"{path}: it is a folder")
    with _below(folder, names[:-1]) as parent:
        fd = os.open(names[-1], _FILE, dir_fd=parent)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(
                f"{path}: it is {'a folder' if stat.S_ISDIR(status.st_mode) else 'no regular file'}"
            )
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"{path}: over {MAX_FILE_BYTES} bytes, too large to read")
    if b"\0" in data[:8192]:
        raise ToolError(f"{path}: not a text file")
    return data


def _page(data: bytes, *, first: int, limit: int | None) -> str:
    """Return lines from ``first`` on that fit the limits, and how to go on where more follow."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    if first > max(len(lines), 1):
        raise ToolError(f"the file has {len(lines)} lines")
    asked = lines[first - 1 :][:limit]
    room, taken = MAX_RESULT_BYTES - _NOTE_ROOM, 0
    for line in asked:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        taken += 1
    text = "\n".join(asked[: max(taken, 1)])  # one line alone over the limit is cut by the toolbox
    rest = len(lines) - (first - 1) - max(taken, 1)
    if rest <= 0:
        return text
    return f"{text}\n[{rest} more lines; go on with offset={first + max(taken, 1)}]"


def _write_file(folder: Path, path: str, data: bytes) -> None:
    names = _names(folder, path)
    if not names or path.endswith("/"):
        raise ToolError(f"{path}: it is a folder")
    name = names[-1]
    if len(os.fsencode(name)) > 255:
        raise OSError(errno.ENAMETOOLONG, "name too long")
    with _below(folder, names[:-1], make=True) as parent:
        mode = _mode_of(parent, name, path)
        _sweep(parent)
        temp = f"{_TEMP_PREFIX}{secrets.token_hex(8)}{_TEMP_SUFFIX}"
        fd = os.open(temp, _NEW, 0o600, dir_fd=parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(fd, mode)
                os.fsync(fd)
            os.rename(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp, dir_fd=parent)
            raise
        os.fsync(parent)


def _mode_of(parent: int, name: str, path: str) -> int:
    """Return the permissions to give; a rename would not follow a link, so a late swap harms nothing."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0o600
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{path}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path}: it is no regular file; links are not followed")
    return stat.S_IMODE(status.st_mode) & 0o777


def _sweep(parent: int) -> None:
    """Remove what writes that were killed an hour ago or earlier left behind."""
    for name in os.listdir(parent):
        if _is_temp(name):
            with suppress(OSError):
                if time.time() - os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime > _TEMP_LIFE_S:
                    os.unlink(name, dir_fd=parent)


def _is_temp(name: str) -> bool:
    return name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)


def _list_folder(folder: Path, path: str) -> str:
    with _below(folder, _names(folder, path)) as fd, os.scandir(fd) as entries:
        rows = sorted(_row(entry) for entry in entries if not _is_temp(entry.name))
    if not rows:
        return "(empty)"
    more = [f"[{len(rows) - MAX_ENTRIES} more names are not shown]"] if len(rows) > MAX_ENTRIES else []
    return "\n".join(rows[:MAX_ENTRIES] + more)


def _row(entry: os.DirEntry[str]) -> str:
    name = os.fsencode(entry.name).decode("utf-8", "replace").replace("\n", "?")
    if entry.is_symlink():
        return f"{name} (link, not followed)"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    with suppress(OSError):
        return f"{name} ({entry.stat(follow_symlinks=False).st_size} bytes)"
    return name
