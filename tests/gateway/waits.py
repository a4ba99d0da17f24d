"""Waits for what can only be looked at, each with a deadline of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

WITHIN_S = 60.0


async def until(true: Callable[[], bool], *, within_s: float = WITHIN_S) -> None:
    """Look again and again, until it is true."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


async def eventually(true: Callable[[], Awaitable[bool]], *, within_s: float = WITHIN_S) -> None:
    """Ask again and again, until it is true."""
    async with asyncio.timeout(within_s):
        while not await true():
            await asyncio.sleep(0.01)
