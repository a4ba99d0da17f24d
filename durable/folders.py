"""Folders are made here and nowhere else: private, their names synced before anything stands in them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from durable import clock
from durable.owner import give, named, owner_of

OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KNOWN_MAX = 4096
# Bytes of a folder's name that stand in the name of its temporary one.
_NAME_MAX = 200
_THERE = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
# Folders whose names this process knows to be on disk, each by its device and number. A number is used
# again: a folder that another process removed and made anew may have it, and counts as known here. Its maker
# syncs it, unless it is killed right then. Only a descriptor kept open would hold the number, and a workspace
# has more folders than a process may have descriptors.
_synced: dict[str, tuple[int, int]] = {}


def make_folder(path: Path) -> None:
    """Make ``path`` and its missing parents, for the owner's eyes alone; their names survive a power cut.

    Raises:
        OSError: the disk refused.
    """
    name = os.fspath(path)
    found = _look(name)
    if found is None:
        if path.parent != path:
            make_folder(path.parent)
        # Another process may make it at this moment; its name is synced below, whoever made it.
        with contextlib.suppress(FileExistsError):
            make_private(path)
        _sync_name(path, made=True)
        found = _look(name)
    elif _synced.get(name) != found:
        # Whoever made it may have been killed, or be held up, before its sync: what is written into it now
        # would be lost with its name.
        _sync_name(path, made=False)
    if found is not None:
        if len(_synced) >= _KNOWN_MAX:
            _synced.clear()
        _synced[name] = found


def make_private(path: Path) -> None:
    """Make one folder, mode 0700, its owner's; its name is not synced.

    Raises:
        FileExistsError: something has this name already.
        OSError: the disk refused.
    """
    # Only root gives folders away, and only root may read every parent that it may pass.
    if os.geteuid() == 0:
        parent = os.open(path.parent, OPEN_FOLDER)
        try:
            with named(path):
                _make_at(parent, path.name)
        finally:
            os.close(parent)
        return
    path.mkdir(mode=0o700)
    # The umask may have taken bits away.
    path.chmod(0o700)


def make_below(folder: int, name: str) -> None:
    """Make a folder within an open one, its name synced; one that is there already stays.

    Raises:
        OSError: the disk refused.
    """
    with contextlib.suppress(FileExistsError):
        _make_at(folder, name)
        os.fsync(folder)


@contextlib.contextmanager
def opened_below(base: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder that ``names`` lead to below ``base``, and close it at the end.

    No link below ``base`` is followed, whatever another process puts in the place of a folder meanwhile.

    Args:
        base: followed where it is a link.
        names: one folder each.
        make: whether missing folders are made.

    Raises:
        OSError: one is missing, is no folder or a link, or may not be entered.
    """
    folder = os.open(base, OPEN_FOLDER)
    try:
        for name in names:
            if make:
                make_below(folder, name)
            deeper = os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, OPEN_FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_at(parent: int, name: str) -> None:
    owner = owner_of(parent)
    if owner is None:
        os.mkdir(name, 0o700, dir_fd=parent)
        os.chmod(name, 0o700, dir_fd=parent)
        return
    # A rename would put the new folder in the place of an empty one that is there.
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    # Root killed between the making and the giving away would leave a folder that its owner cannot enter.
    short = os.fsdecode(os.fsencode(name)[:_NAME_MAX])
    aside = f".{short}.{clock.token_hex(8)}.tmp"
    os.mkdir(aside, 0o700, dir_fd=parent)
    try:
        fd = os.open(aside, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.fchmod(fd, 0o700)
            give(fd, owner)
        finally:
            os.close(fd)
        os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.rmdir(aside, dir_fd=parent)
        # Another process was quicker.
        if error.errno in _THERE:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        raise


def _look(name: str) -> tuple[int, int] | None:
    """Say which folder has this name; None where none has."""
    try:
        found = os.stat(name)  # noqa: PTH116 - this stands in the way of every write
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _sync_name(path: Path, *, made: bool) -> None:
    try:
        sync_folder(path.parent)
    except PermissionError:
        # A parent that we may pass and not read cannot be synced. The file systems with a journal commit the
        # name of a new folder with the folder itself.
        if made:
            sync_folder(path)
    except OSError as error:
        if made or error.errno not in (errno.EROFS, errno.EINVAL):
            raise
