"""Removes temporary files that killed writers left in a workspace, and none that is being written; blocks."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from durable import sweep, try_lock, unlock
from session.disk.layout import Layout
from session.store.lock_record import temp_mark

FOLDERS = ("state", "sessions", "memory", "cron")
_OF_KEY = re.compile(r"\.[0-9a-f]{16}\.\d+\.tmp")


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove them; return which files and folders those were."""
    before = set(_temporary(layout))
    # A writer of a key locks the key and not its file, which would look like a dead one's.
    of_keys = {path.parent for path in before if _OF_KEY.fullmatch(path.name)}
    for folder in {path.parent for path in before} - of_keys:
        if not folder.is_relative_to(layout.sessions) and folder.name != "keys":
            sweep(folder)
    for lock in sorted(layout.keys.glob("*.lock")):
        _of_key(layout, lock)
    return sorted(path for path in before if not os.path.lexists(path))


def _temporary(layout: Layout) -> Iterator[Path]:
    for name in FOLDERS:
        yield from (layout.workspace / name).rglob(".*.tmp")


def _of_key(layout: Layout, lock: Path) -> None:
    """Remove those of a key under its lock, which a writer holds as long as it has a temporary file."""
    mark = f".{temp_mark(lock.stem)}.*.tmp"
    left = [*layout.sessions.glob(mark), *layout.keys.glob(mark), *layout.archive(lock.stem).glob(mark)]
    if not left:
        return
    with contextlib.suppress(OSError):
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Its holder may have been overtaken, by whoever put another lock in its place.
            if try_lock(fd) and os.path.samestat(os.fstat(fd), lock.stat()):
                for path in left:
                    _remove(path)
                unlock(fd)
        finally:
            os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
