"""The files that leave the workspace with a message: which may, and a private copy of each while it is sent.

By one descriptor from look to last byte: a command of the chat's tools may put a link, a pipe or another file
under a name at any time, also between a look and an upload, and an adapter may open what it sends more than
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import durable
from channels.errors import ChannelDown, SendNever
from channels.message import Attachment, Outbound
from durable import is_at, make_folder, make_private, new_file, take_lock, try_lock, write_all
from gateway.config.agents import scopes_of
from gateway.config.settings import Settings
from session.memory.scope_resolver import ScopeResolver
from session.store.store import Store
from session.transcript.agent import AGENTS, is_name, scopes_below
from session.transcript.attachments import open_beneath

FOLDER = "outgoing"
_BLOCK = 2**20
# What no client can put into the header of an upload: it would refuse the file, or the server the whole call.
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Never sent, whatever a reply names.
PRIVATE = "state"

Folders = Callable[[Outbound], Awaitable[Sequence[Path]]]


def folders_by(settings: Settings) -> Folders:
    """Build what names the folders of a letter's files, by what its chat may see.

    The answer of a job may bring what the job wrote, as far as those may see it who get the answer.
    """
    workspace = settings.workspace

    async def folders(out: Outbound) -> Sequence[Path]:
        if not out.attachments:
            return ()
        store = Store(workspace, zone=settings.zone)
        scope_resolver = ScopeResolver(scopes_of(settings), store=store)
        try:
            # What one agent sent may wait here while the chat goes to another.
            agents = await asyncio.to_thread(_agents_of, workspace)
            found = [workspace / "media"]
            found += [each.files for each in await scope_resolver.all_of_key(out.key, agents=agents)]
            job = (out.in_reply_to or "").partition("@")[0]
            if job.startswith("cron:") and job != out.key:
                found += [each.files for each in await scope_resolver.all_of_key(job, out.key, agents=agents)]
        finally:
            await store.aclose()
        return found

    return folders


def _agents_of(workspace: Path) -> list[str]:
    """List all agents that have files here, whether they are configured or were."""
    return ["", *(path.name for path in (workspace / AGENTS).glob("*") if is_name(path.name))]


async def media_alone(out: Outbound) -> Sequence[Path]:
    """Name no folder but that of what people sent, relative to the workspace."""
    return (Path("media"),)


def _owns(home: Path, folder: Path, path: Path) -> bool:
    """Say whether a file is one of a folder; the scope of all direct chats does not own those of others."""
    inside = (home / folder).resolve()
    if not inside.is_relative_to(home) or not path.is_relative_to(inside):
        return False
    top = path.relative_to(inside).parts[:1]
    return not any(name.casefold() in scopes_below(inside) for name in top)


def resolve(attachment: Attachment, workspace: Path, folders: Sequence[Path], max_bytes: int) -> Path | str:
    """Return the file of an attachment without any link, or why it is not sent."""
    try:
        home = workspace.resolve()
        path = (home / attachment.ref).resolve(strict=True)
        if path.is_relative_to(home / PRIVATE) or not any(_owns(home, each, path) for each in folders):
            return "this file may not be sent"
        found = path.stat()
    except (OSError, ValueError, RuntimeError):
        return "this file no longer exists"
    if not stat.S_ISREG(found.st_mode):
        return "this is not a file"
    if found.st_size > max_bytes:
        return f"this file is too large to be sent ({found.st_size / 2**20:.1f} MB)"
    return path


class AttachmentCopies:
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
