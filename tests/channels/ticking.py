"""A clock that moves only when nobody can go on, and then straight to whoever wakes first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable
from itertools import count
from typing import TypeVar

T = TypeVar("T")
PASSES = 20


class Ticking:
    """Time for tests. Call it for the seconds; run what sleeps by it through ``together``."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now
        self._asleep: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, after_s: float) -> None:
        """Sleep until the clock has moved so far."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self.now + after_s, next(self._numbers), woken))
        await woken

    async def together(self, *works: Awaitable[T]) -> list[T]:
        """Run all of them to their ends; the clock moves whenever none of them can go on."""
        done = asyncio.gather(*works)
        while not done.done():
            # Whoever was woken, or waits for another one's lock, goes on within a few passes of the loop.
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if self._asleep and not done.done():
                at, _, woken = heapq.heappop(self._asleep)
                self.now = max(self.now, at)
                if not woken.done():
                    woken.set_result(None)
        return list(await done)
