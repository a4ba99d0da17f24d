"""How many model calls the background may still make in this hour and on this day, counted over restarts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

import durable
from session.disk.state import locked, read_state, write_state
from session.disk.threads import start_thread
from session.errors import NotNow
from session.models.model import CostMeter

log = structlog.get_logger("budget")

# In minutes, by which calls are counted.
HOUR, DAY = 60, 24 * 60


class Budget:
    """Counts calls by the minute in one file that all daemons of a workspace share.

    Hour and day are the last 60 minutes and the last 24 hours, not those of a clock; a limit of 0 is none.
    Calls are counted then, too. A call that
    ``cost_meter`` cannot pay is not made either; None: they cost nothing. Where the file is damaged, the
    calls that it has the cost of stand for those that were counted.
    """

    def __init__(
        self,
        path: Path,
        *,
        per_hour: int,
        per_day: int,
        clock: Callable[[], datetime] = durable.now,
        cost_meter: CostMeter | None = None,
    ) -> None:
        self._cost_meter = cost_meter
        self._path = path
        self._limits = {HOUR: per_hour, DAY: per_day}
        self._clock = clock
        self._used = {HOUR: 0, DAY: 0}
        self._reached_until: datetime | None = None

    async def take(self, *, unasked: bool = True) -> None:
        """Count a call that is about to be made; on return the count survives a power cut.

        Args:
            unasked: a person who asks for it is not refused for the number of calls, though it counts.

        Raises:
            NotNow: a cap is reached, or the day's money is spent; nothing was counted.
            StoreError: the count could not be written.
        """
        if self._cost_meter is not None:
            await self._cost_meter.afford()
        await start_thread(lambda: self._take(unasked), name="budget")

    async def load(self) -> None:
        """Look up what was used, for ``shown`` before the first call."""
        await asyncio.to_thread(lambda: self._count(self._read(), self._minute()))

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

    def _take(self, unasked: bool) -> None:
        with locked(self._path.with_suffix(".lock")):
            minutes, now = self._read(), self._minute()
            self._count(minutes, now)
            for span in (DAY, HOUR):
                if unasked and 0 < self._limits[span] <= self._used[span]:
                    self._refuse(span, minutes, now)
            minutes[now] = minutes.get(now, 0) + 1
            kept = {str(minute): calls for minute, calls in minutes.items() if minute > now - DAY}
            write_state(self._path, {"minutes": kept})
            self._count(minutes, now)

    def _refuse(self, span: int, minutes: dict[int, int], now: int) -> None:
        """Say until when: the minute in which enough calls will have left the span."""
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

    def _count(self, minutes: dict[int, int], now: int) -> None:
        for span in self._used:
            self._used[span] = sum(calls for minute, calls in minutes.items() if minute > now - span)

    def _read(self) -> dict[int, int]:
        minutes = read_state(self._path).get("minutes")
        if not isinstance(minutes, dict):
            return self._recounted() if self._path.exists() else {}
        return {
            int(minute): calls
            for minute, calls in minutes.items()
            if minute.isdigit() and type(calls) is int and int(minute) <= self._minute()
        }

    def _recounted(self) -> dict[int, int]:
        """Count what has cost something anew: the file is damaged, and that must not lift the caps."""
        if self._cost_meter is None:
            return {}
        ends = self._cost_meter.calls(self._clock() - timedelta(minutes=DAY))
        log.warning("budget.recounted", calls=len(ends))
        return dict(Counter(int(at.timestamp() // 60) for at in ends))

    def _minute(self) -> int:
        return int(self._clock().timestamp() // 60)
