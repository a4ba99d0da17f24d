"""Bounds each token: its requests a minute, a tenth of them at once, and its open streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import durable
from durable import BoundedDict

MAX_NAMES: Final = 10_000
# What may come at once where the bound is small: a page asks for several things when it is opened.
MIN_BURST: Final = 10
MAX_STREAMS: Final = 64
# Places that no stream takes, for health checks and other short requests.
RESERVED: Final = 16


class Rates:
    """Counts requests by the name of their token.

    Each name has a stock that fills evenly; a request takes one from it.

    Args:
        per_minute: how many requests a minute; 0: any number.
        clock: seconds, which only grow.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = durable.monotonic) -> None:
        self._per_s = per_minute / 60
        self._most = max(per_minute / 10, min(per_minute, MIN_BURST))
        self._clock = clock
        # What is left of a stock, and when that was so.
        self._stocks: BoundedDict[str, tuple[float, float]] = BoundedDict(MAX_NAMES)

    def wait_s(self, name: str) -> float:
        """Take one request of ``name``; return 0, or after how many seconds the next one is taken."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._stocks.get(name) or (self._most, now)
        left = min(self._most, left + (now - at) * self._per_s)
        if left < 1:
            self._stocks[name] = (left, now)
            return (1 - left) / self._per_s
        self._stocks[name] = (left - 1, now)
        return 0.0


class Streams:
    """Counts requests that may stay open for long, such as event streams, by the name of their token.

    Args:
        descriptors: how many this process may hold; streams take half of them at most.
    """

    def __init__(self, descriptors: int) -> None:
        self._most = max(8, min(10_000, descriptors // 2) - RESERVED)
        self._open: Counter[str] = Counter()

    def enter(self, name: str, *, bounded: bool) -> bool:
        """Count one more; False where there is no room, or a ``bounded`` token has ``MAX_STREAMS`` open."""
        if self._open.total() >= self._most or (bounded and self._open[name] >= MAX_STREAMS):
            return False
        self._open[name] += 1
        return True

    def leave(self, name: str) -> None:
        """Count one less."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
