"""Small JSON files of ``state/``: each with a version, replaced whole, one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from channels.errors import ChannelError, NewerFile

VERSION: Final = 1
_POLL_S: Final = 0.01


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


def open_private(path: Path) -> int:
    """Open a file for reading and writing, made with mode 0600 where there is none; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def locked_now(fd: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file, unless somebody has it. The kernel frees it when its holder dies.

    Any number may have it ``shared``, while nobody has it alone.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def unlock(fd: int) -> None:
    """Free the lock of an open file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold the lock file ``path``. Used from threads and one-shot commands, never on the event loop.

    Raises:
        ChannelError: somebody else has held it for ``wait_s`` seconds, or it cannot be made.
    """
    try:
        private_folder(path.parent)
        fd = open_private(path)
    except OSError as error:
        raise ChannelError(
            f"{path.name} cannot be opened: {error.strerror}", hint=f"look at {path}"
        ) from error
    try:
        until = time.monotonic() + wait_s
        while not locked_now(fd):
            if time.monotonic() >= until:
                raise ChannelError(
                    f"{path.name} is held by another process",
                    hint="look for a process of this workspace that was stopped",
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def read(path: Path) -> dict[str, Any]:
    """Read the object in a file; an empty one where there is no file.

    Raises:
        NewerFile: a newer version of this program wrote it.
        ChannelError: it cannot be read, or is damaged; it is left as it is.
    """
    try:
        content = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ChannelError(f"{path.name} cannot be read: {error.strerror}", hint=f"look at {path}") from error
    except orjson.JSONDecodeError as error:
        raise ChannelError(f"{path.name} is damaged", hint=f"mend {path}, or move it away") from error
    version = content.get("v") if isinstance(content, dict) else None
    if type(version) is not int:
        raise ChannelError(f"{path.name} is damaged: it has no version", hint=f"mend {path}, or move it away")
    if version > VERSION:
        raise NewerFile(
            f"{path.name} was written by a newer version of chat-gateway ({version})",
            hint="install that version; nothing was written",
        )
    return dict(content)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole: a kill or a power cut leaves the old one or the new one.

    Raises:
        ChannelError: the disk refused; the old file is as it was.
    """
    try:
        _replace(path, orjson.dumps({"v": VERSION, **content}))
    except OSError as error:
        raise ChannelError(
            f"{path.name} cannot be written: {error.strerror}",
            hint="free some disk space; nothing was changed",
        ) from error


def _replace(path: Path, content: bytes) -> None:
    temp = path.with_name(f".{path.name}.tmp")  # its writer holds the lock: one name is enough
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temp.replace(path)
    sync_folder(path.parent)
