"""How many model calls the background may still make in this hour and on this day, counted over restarts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

import durable
from durable import Change, Conflict
from session.errors import NotNow
from session.models.spending import Spending
from session.store.state import StoreState

log = structlog.get_logger("budget")

# In minutes, by which calls are counted.
HOUR, DAY = 60, 24 * 60
_NO_LIMIT: Final = 2**62
_TAKE: Final = """
INSERT INTO background_calls
SELECT ?, 1 FROM (
    SELECT coalesce(sum(calls), 0) AS day, coalesce(sum(calls) FILTER (WHERE minute > ?), 0) AS hour
    FROM background_calls WHERE minute > ? AND minute <= ?
) AS used WHERE hour < ? AND day < ?
ON CONFLICT (minute) DO UPDATE SET calls = background_calls.calls + 1
"""


class Budget:
    """Counts calls by the minute, in the state database.

    Hour and day are the last 60 minutes and the last 24 hours, not those of a clock; a limit of 0 is none.
    Calls are counted then, too. A call that ``cost_meter`` cannot pay is not made either; None: they cost
    nothing.
    """

    def __init__(
        self,
        state: StoreState,
        *,
        per_hour: int,
        per_day: int,
        clock: Callable[[], datetime] = durable.now,
        cost_meter: Spending | None = None,
    ) -> None:
        self._cost_meter = cost_meter
        self._state = state
        self._limits = {HOUR: per_hour, DAY: per_day}
        self._clock = clock
        self._used = {HOUR: 0, DAY: 0}
        self._reached_until: datetime | None = None

    async def take(self, *, unasked: bool = True) -> None:
        """Count a call that is about to be made; on return the count survives a power cut.

        A person who asks for it (not ``unasked``) is not refused for the number of calls, though it counts.

        Raises:
            NotNow: a cap is reached, or the day's money is spent; nothing was counted.
            StoreError: the count could not be written.
        """
        if self._cost_meter is not None:
            await self._cost_meter.afford()
        now = self._minute()
        limits = (self._limits[span] if unasked else 0 for span in (HOUR, DAY))
        values = (now, now - HOUR, now - DAY, now, *(limit or _NO_LIMIT for limit in limits))
        taken = Change(_TAKE, values, required=True)
        old = Change("DELETE FROM background_calls WHERE minute <= ?", (now - DAY,))
        try:
            await self._state.write([old, taken])
        except Conflict:
            self._refuse(await self.load(), now)
        await self.load()

    def shown(self) -> dict[str, Any]:
        """Return what ``status`` shows.

        ``reached_until`` is null while their number allows calls, ``cost_reached_until`` while cost does.
        """
        until = self._reached_until
        if until is not None and until <= self._clock():
            until = self._reached_until = None
        closed = self._cost_meter.closed_until() if self._cost_meter is not None else None
        return {
            "calls_last_hour": self._used[HOUR],
            "calls_last_day": self._used[DAY],
            "per_hour": self._limits[HOUR],
            "per_day": self._limits[DAY],
            "reached_until": until.isoformat() if until is not None else None,
            "cost_reached_until": closed.isoformat() if closed is not None else None,
        }

    async def load(self) -> dict[int, int]:
        """Return the calls of each minute of the last day, and remember their sums for ``shown``."""
        now = self._minute()
        query = "SELECT minute, calls FROM background_calls WHERE minute > ? AND minute <= ?"
        minutes: dict[int, int] = dict(await self._state.read(query, (now - DAY, now)))
        for span in self._used:
            self._used[span] = sum(calls for minute, calls in minutes.items() if minute > now - span)
        return minutes

    def _refuse(self, minutes: dict[int, int], now: int) -> None:
        """Say until when: the minute in which enough calls will have left the span."""
        span = next((span for span in (DAY, HOUR) if 0 < self._limits[span] <= self._used[span]), HOUR)
        limit, used, until = self._limits[span], self._used[span], now + span
        for minute in sorted(minute for minute in minutes if minute > now - span):
            used -= minutes[minute]
            if used < limit:
                until = minute + span
                break
        at = datetime.fromtimestamp(until * 60, UTC)
        if self._reached_until is None or self._reached_until < at:
            name = "hour" if span == HOUR else "day"
            log.warning(
                "budget.reached", span=name, calls=self._used[span], limit=limit, until=at.isoformat()
            )
        self._reached_until = at
        raise NotNow(f"the budget of {limit} background calls is used up", reason="budget", until=at)

    def _minute(self) -> int:
        return int(self._clock().timestamp() // 60)
