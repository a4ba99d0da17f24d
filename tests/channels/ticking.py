"""A clock that moves only when everybody who is counted sleeps, and then straight to whoever wakes first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable
from itertools import count
from typing import TypeVar

T = TypeVar("T")


class Ticking:
    """Time for tests. Call it for the seconds; run what sleeps by it through ``together``."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now
        self._awake = 0
        self._asleep: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, after_s: float) -> None:
        """Sleep until the clock has moved so far."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self.now + after_s, next(self._numbers), woken))
        self._awake -= 1
        self._tick()
        try:
            await woken
        except asyncio.CancelledError:
            self._awake += 1
            raise

    async def together(self, *works: Awaitable[T]) -> list[T]:
        """Run all of them to their ends; the clock moves whenever all that still run are asleep."""
        self._awake += len(works)
        return list(await asyncio.gather(*(self._counted(work) for work in works)))

    async def _counted(self, work: Awaitable[T]) -> T:
        try:
            return await work
        finally:
            self._awake -= 1
            self._tick()

    def _tick(self) -> None:
        while self._awake <= 0 and self._asleep:
            at, _, woken = heapq.heappop(self._asleep)
            if not woken.done():
                self.now = max(self.now, at)
                self._awake += 1
                woken.set_result(None)
