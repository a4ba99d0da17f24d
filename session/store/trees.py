"""Walks and removes folders that a chat's commands filled, however deep, and never through a link.

Neither calls itself for each level, nor needs a path to what lies deeper than one may be long.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

# Deeper, or under longer names, no file is listed: a path of 4096 bytes is the kernel's end.
DEEP_MAX: Final = 200
PATH_MAX: Final = 3000
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW
# A folder itself, whatever its mode, and no link in its place.
_AS_IT_IS: Final = getattr(os, "O_PATH", 0) | _FOLDER


def _nothing(_: Path) -> None:
    pass


def _let_be(_: OSError) -> None:
    pass


def folders(
    tree: Path,
    *,
    enter: Callable[[Path], None] = _nothing,
    failed: Callable[[OSError], None] = _let_be,
    too_deep: Callable[[Path], None] = _nothing,
) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and those below it, each with the names of what is no folder in it.

    Args:
        tree: where it begins; nothing is below a link.
        enter: told of each folder before it is listed.
        failed: told of a folder that cannot be listed, by the error's filename.
        too_deep: told of a folder that is passed over with all that lies in it.
    """
    left = [(tree, 0)]
    while left:
        folder, depth = left.pop()
        if depth > DEEP_MAX or len(os.fsencode(folder)) > PATH_MAX:
            too_deep(folder)
            continue
        enter(folder)
        below: list[str] = []
        names: list[str] = []
        try:
            if folder.is_symlink():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    (below if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        except OSError as error:
            failed(error)
            continue
        yield folder, sorted(names)
        left += [(folder / name, depth + 1) for name in sorted(below, reverse=True)]


def open_up(tree: Path) -> None:
    """Let its owner look into and change a folder and those below it: a command may have shut one.

    No link is followed, also where one takes the place of a folder meanwhile. What cannot be opened stays as
    it is: whoever removes it says so. So does what lies too deep to be listed.
    """
    for _ in folders(tree, enter=_let_in):
        pass


def remove_tree(top: Path) -> None:
    """Delete a folder and all that is in it; what goes meanwhile is no matter.

    What lies deeper is brought to the top first, where its path is short.

    Raises:
        OSError: the disk refused; call it again.
    """
    _let_in(top)
    try:
        folder = os.open(top, os.O_RDONLY | _FOLDER)
    except FileNotFoundError:
        return
    try:
        fresh, number, left = secrets.token_hex(8), count(), os.listdir(folder)  # noqa: PTH208
        while left:
            name = left.pop()
            with contextlib.suppress(FileNotFoundError):
                if not _is_gone(name, folder):
                    left += _emptied(name, folder, (f"{fresh}-{at}" for at in number))
                    os.rmdir(name, dir_fd=folder)
    finally:
        os.close(folder)
    with contextlib.suppress(FileNotFoundError):
        top.rmdir()


def _emptied(name: str, folder: int, fresh: Iterator[str]) -> Iterator[str]:
    """Remove what lies in one of a folder's folders, and bring those that are not empty up beside it."""
    within = os.open(name, os.O_RDONLY | _FOLDER, dir_fd=folder)
    try:
        for each in os.listdir(within):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):
                if not _is_gone(each, within):
                    upper = next(fresh)
                    os.rename(each, upper, src_dir_fd=within, dst_dir_fd=folder)
                    yield upper
    finally:
        os.close(within)


def _is_gone(name: str, folder: int) -> bool:
    """Remove what is no folder, or an empty one; of any other, let its owner in."""
    with contextlib.suppress(IsADirectoryError):
        os.unlink(name, dir_fd=folder)
        return True
    _let_in(name, folder)
    try:
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _let_in(path: Path | str, folder: int | None = None) -> None:
    with contextlib.suppress(OSError):
        opened = os.open(path, _AS_IT_IS, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(opened).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                # By the number of what is open: by its name it might be another one by now.
                Path(f"/proc/self/fd/{opened}").chmod(mode | stat.S_IRWXU)
        finally:
            os.close(opened)
