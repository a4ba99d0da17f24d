"""What leaves is a private copy, made of a file when it is sent: by one descriptor from look to last byte.

A command of the chat's tools may put a link, a pipe or another file under a name at any time, also between a
look and an upload, and an adapter may open what it sends more than once.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import durable
from channels.errors import ChannelDown, SendNever
from durable import is_at, make_folder, make_private, new_file, take_lock, try_lock, write_all
from session.transcript.attachments import open_beneath

FOLDER = "outgoing"
_BLOCK = 2**20
# What no client can put into the header of an upload: it would refuse the file, or the server the whole call.
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Copies:
    """The copies of one delivery, each there for the time of one call.

    Those that a killed process left behind go with the first file that is sent after it.

    Args:
        state: the folder that has ``outgoing/``.
        workspace: below it lie the files.
        max_bytes: none is larger.
    """

    def __init__(self, state: Path, workspace: Path, *, max_bytes: int) -> None:
        self._folder = state / FOLDER
        self._workspace = workspace
        self._max_bytes = max_bytes
        self._own: Path | None = None
        self._lock = -1
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def of(self, file: Path) -> AsyncIterator[Path]:
        """Copy a file, under its own name as far as it can be sent; ``file`` is its path without any link.

        Raises:
            SendNever: there is none any more, or another that may not be sent.
            ChannelDown: the disk has no room for the copy, or refused it; it may be made later.
        """
        folder: Path | None = None
        try:
            try:
                folder = await self._ours() / durable.token_hex(8)
                copy = await asyncio.to_thread(self._copy, file, folder)
            except OSError as error:
                raise ChannelDown(
                    f"no disk space for a copy of the file: {error.strerror or error}"
                ) from error
            yield copy
        finally:
            if folder is not None:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def aclose(self) -> None:
        """Remove what is left."""
        own, self._own = self._own, None
        if own is not None:
            await asyncio.to_thread(self._end, own)

    async def _ours(self) -> Path:
        async with self._one_at_a_time:
            if self._own is None:
                self._own = await asyncio.to_thread(self._begin)
            return self._own

    def _begin(self) -> Path:
        make_folder(self._folder)
        for left in self._folder.glob("*.lock"):
            _remove_of_dead(left)
        while True:
            own = self._folder / durable.token_hex(8)
            lock = own.with_suffix(".lock")
            fd = take_lock(lock)
            # Whoever removes what the dead left may have been there first.
            if fd is not None and is_at(fd, lock):
                self._lock = fd
                make_private(own)
                return own
            if fd is not None:
                os.close(fd)

    def _end(self, own: Path) -> None:
        shutil.rmtree(own, ignore_errors=True)
        own.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)

    def _copy(self, file: Path, folder: Path) -> Path:
        home = self._workspace.resolve()
        try:
            source = open_beneath(home, file.relative_to(home).as_posix())
        except (OSError, ValueError) as error:
            raise SendNever("the file no longer exists") from error
        with io.FileIO(source) as data:
            make_private(folder)
            copy = folder / _UNSENDABLE.sub("_", file.name)
            left = self._max_bytes
            with new_file(copy) as fd:
                while block := _read(data, min(_BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise SendNever("the file has grown too large to be sent")
                    write_all(fd, block)
        return copy


def _read(data: io.FileIO, most: int) -> bytes:
    try:
        return data.read(most)
    except OSError as error:
        raise SendNever(f"the file cannot be read: {error.strerror}") from error


def _remove_of_dead(lock: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if try_lock(fd) and is_at(fd, lock):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()
        finally:
            os.close(fd)
