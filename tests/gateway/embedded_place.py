"""An embedded mailbox in a folder, as tests open and end it, and the disk under it, as tests fill it."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gateway.errors import MailboxDown
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs, Post

M = TypeVar("M", bound=Mailbox)
_SERVING: dict[Mailbox, asyncio.Task[None]] = {}


@asynccontextmanager
async def opened(state: Path, **options: object) -> AsyncIterator[EmbeddedMailbox]:
    """Serve a mailbox on ``state`` until the context is left, or ``vanish`` was called."""
    async with serving(EmbeddedMailbox(state, **options)) as mailbox:  # type: ignore[arg-type]
        yield mailbox


@asynccontextmanager
async def serving(mailbox: M) -> AsyncIterator[M]:
    """Serve ``mailbox``, of either kind, until the context is left, or ``vanish`` was called."""
    _SERVING[mailbox] = asyncio.create_task(mailbox.serve(), name="serve")
    try:
        await mailbox.ready()
        yield mailbox
    finally:
        await vanish(mailbox)


async def vanish(mailbox: Mailbox) -> None:
    """End the serving of ``mailbox``; its takers stay where they are."""
    task = _SERVING.pop(mailbox, None)
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class BreaksAt(EmbeddedMailbox):
    """A queue with an error that nobody foresaw: settling one message, parking, or putting a notice.

    ``tried`` counts the tries to park, ``told`` those to put a notice.
    """

    def __init__(
        self, state: Path, *, settling: str = "", parking: bool = False, notices: bool = False
    ) -> None:
        super().__init__(state)
        self.tried = self.told = 0
        self._notices = notices
        self._settling = settling
        self._parking = parking

    async def put(self, post: Post) -> None:
        if "#notice." in post.id:
            self.told += 1
            if self._notices:
                raise RuntimeError("a queue that breaks")
        await super().put(post)

    async def settle(self, letter: Letter, puts: Sequence[Post] = (), **how: Any) -> None:
        if self._settling and letter.id == self._settling:
            raise RuntimeError("a queue that breaks")
        await super().settle(letter, puts, **how)

    async def park(self, letter: Letter, listed: ParkedAs, **how: Any) -> None:
        self.tried += 1
        if self._parking:
            raise RuntimeError("a queue that breaks")
        await super().park(letter, listed, **how)


class OnePut(EmbeddedMailbox):
    """Stores what is put under one id only when ``gate`` is set, and refuses it the first time, where asked.

    ``waits`` is set when it came; ``confirmed`` counts how often it was stored.
    """

    def __init__(self, state: Path, id: str, *, refuses: bool = False, held: bool = False) -> None:
        super().__init__(state)
        self.waits, self.gate = asyncio.Event(), asyncio.Event()
        if not held:
            self.gate.set()
        self.confirmed = 0
        self._id, self._refuses = id, refuses

    async def put(self, post: Post) -> None:
        if post.id == self._id:
            self.waits.set()
            await self.gate.wait()
            if self._refuses:
                self._refuses = False
                raise MailboxDown("no confirmation")
        await super().put(post)
        self.confirmed += post.id == self._id


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``size_bytes``: a write past it fails as on a full disk.

    What is imported meanwhile for the first time is not kept compiled: half of that would stay for ever.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = before
