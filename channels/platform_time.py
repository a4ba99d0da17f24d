"""The time as a platform tells it with its answers, carried on by a clock that nobody sets."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

# Where there is such a clock, it counts on while the machine sleeps.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Return seconds since some moment; setting the clock changes nothing."""
    return time.clock_gettime(_STEADY)


class PlatformTime:
    """What the newest answer told; its second is whole, so that it is never ahead of the platform."""

    def __init__(self) -> None:
        self._told: datetime | None = None
        self._heard_s = 0.0

    def note(self, date: str | None) -> None:
        """Take the ``Date`` header of an answer; what is none is left out."""
        try:
            told = parsedate_to_datetime(date or "")
        except (TypeError, ValueError):
            return
        self._told = told.astimezone(UTC) if told.tzinfo else told.replace(tzinfo=UTC)
        self._heard_s = steady_s()

    def now(self) -> datetime | None:
        """Return the platform's time now; None before the first answer that told it."""
        if self._told is None:
            return None
        return self._told + timedelta(seconds=steady_s() - self._heard_s)
