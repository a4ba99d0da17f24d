"""The clock of tests: it stands until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2027, 1, 1, tzinfo=UTC)


class Clock:
    """Call it for the time of day, ``monotonic`` for seconds that never go back, ``sleep`` to wait by it.

    A test that assigns ``now`` sets the clock, as a person or the network would: no time passes by that.
    """

    def __init__(self, now: datetime = START) -> None:
        self.now = now
        self._passed_s = 0.0
        self._moved = asyncio.Event()

    def __call__(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        """Return how many seconds have passed since the clock was made."""
        return self._passed_s

    def forward(self, seconds: float = 0.0, **more: float) -> None:
        """Let so much time pass; ``more`` as ``timedelta`` names it: ``minutes=5``."""
        passed = timedelta(seconds=seconds, **more)
        self.now += passed
        self._passed_s += passed.total_seconds()
        self._moved.set()
        self._moved = asyncio.Event()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep from this call on: a task that awaits it may begin after the clock has moved."""
        return self._until(self._passed_s + seconds)

    async def _until(self, passed_s: float) -> None:
        while self._passed_s < passed_s:
            await self._moved.wait()
