"""One adapter over all processes of a workspace: who holds the lease runs it, until it ends or dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import orjson

import durable
from channels import state_file

TRY_S: Final = 1.0


@contextlib.asynccontextmanager
async def lease(
    state: Path, name: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator[None]:
    """Wait until this process holds ``state/<name>.lease``, and hold it until the context is left.

    The lock is the kernel's: it is free as soon as its holder is dead, whatever killed it. The file stays.
    """
    fd = await asyncio.to_thread(_open, _path(state, name))
    try:
        while not durable.try_lock(fd):
            await sleep(TRY_S)
        # On a full disk the lease holds all the same: only a curious person reads the file.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, orjson.dumps({"v": state_file.VERSION, "pid": os.getpid()}), 0)
        yield
    finally:
        os.close(fd)


def held(state: Path, name: str) -> bool:
    """Say whether some process, perhaps this one, holds a lease now; others who ask do not count."""
    try:
        fd = os.open(_path(state, name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not durable.try_lock(fd, shared=True)
    finally:
        os.close(fd)


def _path(state: Path, name: str) -> Path:
    return state / f"{name}.lease"


def _open(path: Path) -> int:
    durable.make_folder(path.parent)
    return durable.open_private(path)
