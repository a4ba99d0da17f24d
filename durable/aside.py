"""Files that take the place of others: written aside, synced, given their name, the folder synced.

A crash after any step leaves the old file or the new one under the name, whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from durable.beside import beside_file
from durable.files import new_file, write_all
from durable.folders import make_folder, sync_folder
from durable.owner import keep_owner

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@contextlib.contextmanager
def replacing(
    path: Path, *, temp: Path, check: Callable[[], object] = lambda: None, new: bool = False
) -> Iterator[int]:
    """Open ``temp`` for what is to stand under ``path``; at the end of the block it is there, durable.

    Args:
        path: the name that it gets.
        temp: a name in the same folder that nobody else uses now; a stale file of it is written over.
        check: called when everything is on disk, right before the name is given; what it raises stops that.
        new: nothing may stand there yet.

    Raises:
        FileExistsError: something stands there, and ``new`` is asked for; it is as it was.
        OSError: the disk refused; what stood there does so still.
    """
    with new_file(temp) as fd:
        yield fd
        # A power cut could otherwise leave the new name with nothing in it.
        os.fsync(fd)
        check()
        if new:
            os.link(temp, path)
        else:
            temp.rename(path)
    # The temporary name goes last: a crash before leaves a second name of a whole file.
    sync_folder(path.parent)
    if new:
        temp.unlink(missing_ok=True)


def replace(
    path: Path, data: bytes, *, check: Callable[[], object] = lambda: None, inherit: bool = True
) -> os.stat_result:
    """Put ``data`` in the place of a file, its folder made where it is missing; return what it is now.

    Several threads and processes may do so at once: the last one that comes to its end has its content
    there. ``check`` as in ``replacing``; without ``inherit`` what root makes stays root's.

    Raises:
        OSError: the disk refused; the old file stands.
    """
    make_folder(path.parent)
    with beside_file(path, inherit=inherit) as (fd, temp):
        write_all(fd, data)
        # The content comes before the name: after a power cut the name must not stand for an empty file.
        os.fsync(fd)
        found = os.fstat(fd)
        check()
        temp.rename(path)
    # Until the folder is synced, a power cut may bring the old file back after its caller went on.
    sync_folder(path.parent)
    return found


def replace_below(folder: int, name: str, data: bytes, *, temp: str, mode: int = 0o600) -> None:
    """Put ``data`` in the place of a file in an open folder.

    Raises:
        OSError: the disk refused; the old file stands.
    """
    fd = os.open(temp, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            write_all(fd, data)
            os.fchmod(fd, mode)
            keep_owner(fd, folder)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp, dir_fd=folder)
        raise
    # The caller relies on the new content from here on, so that its name must survive a power cut as well.
    os.fsync(folder)


def settle(temp: Path, path: Path) -> None:
    """Give a file that was written under another name its own, durable.

    Raises:
        OSError: the disk refused; what stood there does so still.
    """
    with temp.open("rb") as content:
        os.fsync(content.fileno())
    temp.rename(path)
    sync_folder(path.parent)
