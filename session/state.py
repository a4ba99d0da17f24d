"""Files that are replaced whole, the small versioned ones of ``state/`` among them, and their locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from session.disk import opened, private_folder, read_file, sync_folder, write_all
from session.errors import NewerFormat, StoreError

log = structlog.get_logger("state")

VERSION = 1
LOCK_WAIT_S = 10.0
_POLL_S = 0.01
_NAME_MAX = 200  # bytes of a file's name that stand in the name of its temporary one
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file, so that a crash leaves the old content or the new.

    Several threads and processes may do so at once: the last one that comes to its end has its content there.

    Raises:
        StoreError: the disk refused; the old file stands.
    """
    try:
        private_folder(path.parent)
        with _beside(path) as (fd, temp):
            write_all(fd, data)
            os.fsync(fd)
            temp.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        cure = "free some disk space" if error.errno in _FULL else f"look at {path.parent}"
        raise StoreError(
            f"{path.name} could not be written: {error.strerror or error}",
            hint=f"{cure}; the old file stands",
        ) from error


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[int, Path]]:
    """Open an empty private file beside ``path``, this writer's alone; it is removed if the block fails.

    Its writer holds its lock. A file without one is what a killed writer left behind, and is used again.
    """
    name = os.fsdecode(os.fsencode(path.name)[:_NAME_MAX])
    for number in itertools.count():
        temp = path.with_name(f".{name}.{number}.tmp")
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _is_ours(fd, temp):
                continue
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, 0)
            try:
                yield fd, temp
            except BaseException:
                with contextlib.suppress(OSError):
                    if opened(fd).is_at(str(temp)):
                        temp.unlink()
                raise
            return
        finally:
            os.close(fd)


def _is_ours(fd: int, temp: Path) -> bool:
    """Lock a temporary file; False where another has it, or was quicker to rename or remove it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return opened(fd).is_at(str(temp))


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind in a folder, and nothing that is being written."""
    for temp in folder.glob(".*.[0-9]*.tmp"):
        with contextlib.suppress(OSError):
            fd = os.open(temp, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _is_ours(fd, temp):
                    temp.unlink()
            finally:
                os.close(fd)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file; empty where there is none, and where a damaged one says nothing.

    Raises:
        NewerFormat: a newer version wrote it.
        StoreError: it cannot be read.
    """
    found = read_file(path)
    if found is None:
        return {}
    try:
        content = json.loads(found[0])
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        log.warning("state.unreadable", file=path.name)
        return {}
    version = content.get("v")
    if type(version) is int and version > VERSION:
        raise NewerFormat(f"{path.name} has version {version}", hint="it was written by a newer chat-gateway")
    return content


def write_state(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a state file; on return it survives a power cut.

    Raises:
        StoreError: the disk refused; the old file stands.
    """
    replace_file(path, json.dumps({"v": VERSION, **content}).encode())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file for a moment, waiting for whoever holds it; for threads.

    Raises:
        StoreError: it was held for LOCK_WAIT_S seconds, as only a frozen process does.
    """
    until = time.monotonic() + LOCK_WAIT_S
    while (fd := try_lock(path)) is None:
        if time.monotonic() > until:
            raise StoreError(f"{path.name} is held by another process", hint="is one of them stopped?")
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        let_go(fd)


def try_lock(path: Path) -> int | None:
    """Take a lock file and return its descriptor, for ``let_go``; None while another holds it."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def let_go(fd: int) -> None:
    """Let go of a lock file, also where a process that is just being started still has its descriptors."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        private_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path.name} cannot be opened: {error.strerror}", hint=f"look at {path}") from error
