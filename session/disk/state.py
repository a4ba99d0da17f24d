"""Files that are replaced whole, the small versioned ones of ``state/`` among them, and their locks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

import durable
from session.disk.layout import read_file
from session.errors import NewerFormat, StoreError

log = structlog.get_logger("state")

VERSION = 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)


def replace_file(path: Path, data: bytes, *, inherit: bool = True) -> None:
    """Put ``data`` in the place of a file, so that a crash leaves the old content or the new.

    Several threads and processes may do so at once: the last one that comes to its end has its content there.
    Where root works in somebody's folder, the file is that person's, unless it is not to ``inherit``.

    Raises:
        StoreError: the disk refused; the old file stands.
    """
    try:
        durable.replace(path, data, inherit=inherit)
    except OSError as error:
        cure = "free some disk space" if error.errno in _FULL else f"check {path.parent}"
        raise StoreError(
            f"{path.name} could not be written: {error.strerror or error}",
            hint=f"{cure}; the old file is kept",
        ) from error


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
        content = durable.decode_state(found[0], VERSION, path.name, error=NewerFormat)
    except durable.Damaged:
        log.warning("state.unreadable", file=path.name)
        return {}
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
        StoreError: it was held for 10 s, as only a frozen process does, or it cannot be opened.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(durable.locked(path))
        except durable.LockHeld as error:
            raise StoreError(str(error), hint=error.hint) from error
        except OSError as error:
            raise _unopened(path, error) from error
        yield


def try_lock(path: Path) -> int | None:
    """Take a lock file and return its descriptor, for ``let_go``; None while another holds it."""
    try:
        return durable.take_lock(path)
    except OSError as error:
        raise _unopened(path, error) from error


def let_go(fd: int) -> None:
    """Let go of a lock file, also where a process that is just being started still has its descriptors."""
    try:
        durable.unlock(fd)
    finally:
        os.close(fd)


def _unopened(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path.name} cannot be opened: {error.strerror}", hint=f"check {path}")
