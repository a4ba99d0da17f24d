"""Walks and removes folders that a chat's commands filled, however deep, and never through a link.

Neither calls itself for each level, nor needs a path to what lies deeper than one may be long.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

import durable
from durable import opened_below

# Deeper, or under longer names, no file is listed: a path of 4096 bytes is the kernel's end.
DEEP_MAX: Final = 200
PATH_MAX: Final = 3000
# Without O_NONBLOCK a pipe would hold whoever opens it until somebody writes into it.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
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
    at: Sequence[str] = (),
    let_in: bool = False,
    failed: Callable[[OSError], None] = _let_be,
    too_deep: Callable[[Path], None] = _nothing,
) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and those below it, each with the names of what is no folder in it.

    No link is followed, also where one takes the place of a folder meanwhile.

    Args:
        tree: where it begins; nothing is below a link.
        at: the names of a folder below it at which to begin instead.
        let_in: whether its owner is first let into each folder.
        failed: told of a folder that cannot be listed or entered, by the error's filename.
        too_deep: told of a folder that is passed over with all that lies in it.
    """
    if let_in and not at:
        _let_in(tree)
    left = [tuple(at)]
    while left:
        names = left.pop()
        folder = tree.joinpath(*names)
        if len(names) > DEEP_MAX or len(os.fsencode(folder)) > PATH_MAX:
            too_deep(folder)
            continue
        below: list[str] = []
        files: list[str] = []
        try:
            with opened_below(tree.parent, (tree.name, *names)) as opened, os.scandir(opened) as entries:
                # Some folders can be listed, and their files yet not be reached.
                os.stat(".", dir_fd=opened)
                for entry in entries:
                    (below if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
                for name in below if let_in else ():
                    _let_in(name, opened)
        except OSError as error:
            error.filename = os.fspath(folder)
            failed(error)
            continue
        yield folder, sorted(files)
        left += [(*names, name) for name in sorted(below, reverse=True)]


def open_up(tree: Path, at: Sequence[str] = ()) -> None:
    """Let its owner look into and change a folder and those below it: a command may have shut one.

    What cannot be opened stays as it is: whoever removes it says so. So does what lies too deep to be listed.
    """
    if at:
        with contextlib.suppress(OSError), opened_below(tree, at[:-1]) as parent:
            _let_in(at[-1], parent)
    for _ in folders(tree, at=at, let_in=True):
        pass


def open_plain(name: str, folder: int) -> BinaryIO | None:
    """Open a regular file of an open folder; None for a link, a pipe, or whatever else has this name.

    Raises:
        OSError: there is none, or it may not be read.
    """
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    return None


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
        fresh, number, left = durable.token_hex(8), count(), os.listdir(folder)  # noqa: PTH208
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
