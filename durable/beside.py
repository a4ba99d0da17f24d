"""Temporary files beside the one whose place they are to take: each its writer's, a dead one's used again."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from durable.files import create
from durable.locks import is_at, try_lock

# Bytes of a file's name that stand in the name of its temporary one.
_NAME_MAX = 200
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind in a folder, and nothing that is being written."""
    for temp in folder.glob(".*.[0-9]*.tmp"):
        with contextlib.suppress(OSError):
            # The opening of a pipe that somebody put there would wait for ever.
            fd = os.open(temp, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _is_ours(fd, temp):
                    temp.unlink()
            finally:
                os.close(fd)


@contextlib.contextmanager
def beside_file(path: Path, *, inherit: bool) -> Iterator[tuple[int, Path]]:
    """Open an empty private file beside ``path``, this writer's alone; it is removed if the block fails.

    Its writer holds its lock. A file without one is what a killed writer left behind, and is used again.
    """
    name = os.fsdecode(os.fsencode(path.name)[:_NAME_MAX])
    for number in itertools.count():
        temp = path.with_name(f".{name}.{number}.tmp")
        try:
            fd = create(temp, _OPEN, inherit=inherit)
        except PermissionError:
            # Root may have been killed before it gave it away; without it the folder itself is barred.
            if os.path.lexists(temp):
                continue
            raise
        try:
            if not _is_ours(fd, temp):
                continue
            # A killed writer may have left its content there, longer than the new one.
            os.ftruncate(fd, 0)
            try:
                yield fd, temp
            except BaseException:
                with contextlib.suppress(OSError):
                    # Once it was renamed, the temporary name may be that of another writer.
                    if is_at(fd, temp):
                        temp.unlink()
                raise
            return
        finally:
            os.close(fd)


def _is_ours(fd: int, temp: Path) -> bool:
    """Lock a temporary file; False where another has it, or was quicker to rename or remove it."""
    return try_lock(fd) and is_at(fd, temp)
