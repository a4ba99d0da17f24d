"""An embedded mailbox in a folder, as tests open and end it, and the disk under it, as tests fill it."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from gateway.queue.embedded.mailbox import EmbeddedMailbox

_SERVING: dict[EmbeddedMailbox, asyncio.Task[None]] = {}


@asynccontextmanager
async def opened(state: Path, **options: object) -> AsyncIterator[EmbeddedMailbox]:
    """Serve a mailbox on ``state`` until the context is left, or ``vanish`` was called."""
    mailbox = EmbeddedMailbox(state, **options)  # type: ignore[arg-type]
    async with serving(mailbox):
        yield mailbox


@asynccontextmanager
async def serving(mailbox: EmbeddedMailbox) -> AsyncIterator[None]:
    """Serve ``mailbox`` until the context is left, or ``vanish`` was called."""
    _SERVING[mailbox] = asyncio.create_task(mailbox.serve(), name="serve")
    try:
        await mailbox.ready()
        yield
    finally:
        await vanish(mailbox)


async def vanish(mailbox: EmbeddedMailbox) -> None:
    """End the serving of ``mailbox``; its takers stay where they are."""
    task = _SERVING.pop(mailbox, None)
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


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
