"""Whose a new file is: where root works in somebody's folder, it belongs to the owner of that folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# A container's root without CAP_CHOWN, a share that maps root away, an owner that a container does not know.
_NOT_OURS_TO_GIVE = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP)


class Owner(NamedTuple):
    """A user and a group, by number."""

    uid: int
    gid: int


def owner_of(folder: int) -> Owner | None:
    """Return whose an entry of an open folder should be; None where it is its maker's anyway.

    The folder it lies in decides, not the workspace: a folder that was swapped for a link to another one
    gets nothing that its own owner could not have made there.
    """
    if os.geteuid() != 0:
        return None
    found = os.fstat(folder)
    return None if found.st_uid == 0 else Owner(found.st_uid, found.st_gid)


def keep_owner(fd: int, folder: int) -> None:
    """Give an open file, which this process made in an open folder, to whom the folder belongs."""
    owner = owner_of(folder)
    if owner is not None:
        give(fd, owner)


def give(fd: int, owner: Owner) -> None:
    """Give an open file or folder to its owner, where the system lets us; else it stays ours."""
    try:
        os.fchown(fd, owner.uid, owner.gid)
    except OSError as error:
        if error.errno not in _NOT_OURS_TO_GIVE:
            raise


def like(fd: int, file: Path) -> None:
    """Give a new file the owner and the permissions of the one whose place it takes."""
    found = file.stat()
    # A file of somebody else becomes ours.
    with contextlib.suppress(PermissionError):
        os.fchown(fd, found.st_uid, found.st_gid)
    os.fchmod(fd, found.st_mode & 0o7777)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Let what the system refuses within an open folder name the whole path, as whoever reads it needs."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None
        raise
