"""When a job may begin: once it is due, and at a moment when no turn has just ended, if that comes soon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

# What gives way to turns does so no longer than this: where chats never rest it begins all the same.
LATEST_S = 30.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Due:
    """A job that waits, or is being done.

    Args:
        at: when it is due.
        latest: until when it gives way to turns.
        tries: how often it was put off.
        reason: why it was, the last time.
        again: its file was written while it was being done.
        scope: where it writes, as far as that was looked up.
        arrival: its number among all that were asked for.
    """

    at: datetime
    latest: datetime
    tries: int = 0
    reason: str = ""
    again: bool = False
    scope: str = ""
    arrival: int = 0


class Calm:
    """Knows when the last turn ended, and what waits for that to be a moment ago.

    Who has just been answered may write again at once, and the next answer would be late by what the work
    in between takes of the loop.

    Args:
        quiet_s: how long no turn must have ended; 0: nothing gives way.
    """

    def __init__(self, quiet_s: float, clock: Callable[[], datetime]) -> None:
        self._quiet_s = timedelta(seconds=quiet_s)
        self._latest_s = timedelta(seconds=LATEST_S if quiet_s else 0)
        self._clock = clock
        self._from = _LONG_AGO

    def disturb(self) -> None:
        """Note that a turn ended."""
        self._from = self._clock() + self._quiet_s

    def due(self, *, gives_way: bool) -> Due:
        """Return that of a job which was just asked for."""
        now = self._clock()
        return Due(now, now + self._latest_s if gives_way else now)

    def start_of(self, due: Due) -> datetime:
        """Return when a job may begin if no further turn ends."""
        return max(due.at, min(self._from, due.latest))
