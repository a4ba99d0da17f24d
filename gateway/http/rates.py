"""Bounds the requests of each token: so many a minute, a tenth of them at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from durable import BoundedDict

MAX_NAMES: Final = 10_000
# What may come at once where the bound is small: a page asks for several things when it is opened.
MIN_BURST: Final = 10


class Rates:
    """Counts requests by the name of their token.

    Each name has a stock that fills evenly; a request takes one from it.

    Args:
        per_minute: how many requests a minute; 0: any number.
        clock: seconds, which only grow.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
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
