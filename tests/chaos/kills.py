"""How many kills there shall be and were, and what else was done: shared by all that harm."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.records import Harm


@dataclass
class Done:
    """What was done: ``deaths`` counts them by place, ``ended`` names what went on where it should not."""

    harms: list[Harm] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)


class Kills:
    """How many there shall be, and how many there were, of all processes together."""

    def __init__(self, wanted: int, done: Callable[[], None]) -> None:
        self.left = wanted
        self.count = 0
        self._done = done
        self._changed = asyncio.Condition()

    def take(self) -> bool:
        """Take one that is still to be done; False where none is left."""
        self.left -= 1
        return self.left >= 0

    async def add(self) -> None:
        """Count one that was done."""
        self.count += 1
        self._done()
        async with self._changed:
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        """Wait until so many are done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)
