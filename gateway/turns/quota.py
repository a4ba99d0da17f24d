"""Whether a message may still be asked: turns per person and hour, cost per day; the chat is told once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from channels.message import Inbound
from session.models.model import Usage
from session.models.spending import COST_SAID, DAY, HOUR, Spending
from session.store.store import Session
from session.turn.turn import Reply

REASON = "limit"
TURNS_SAID = (
    "This is more than the {} messages an hour that are answered here. "
    "Messages are answered again in about {} minutes."
)


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that is reached: whose, what the chat is told, and since when it need not be told again."""

    about: str
    text: str
    told_since: datetime


class Quota:
    """The limits on what people may ask; over all their chats, and over all daemons of a workspace."""

    def __init__(
        self,
        spending: Spending,
        *,
        turns_per_hour: int = 0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Keep the figures; 0 is no limit. What may be spent in a day is the limit of ``spending`` itself."""
        self._spending = spending
        self._turns_per_hour = turns_per_hour
        self._clock = clock
        self._running: Counter[str] = Counter()

    async def refusal(self, session: Session, inbound: Inbound) -> Reply | None:
        """Return what a message over a limit ends in, already in the journal. None: it may be asked.

        Raises:
            NewerFormat, StoreError, Fenced: nothing was decided.
        """
        if not self._turns_per_hour and not self._spending.limited:
            return None
        await self._spending.refresh()
        over = self._over(person_of(inbound))
        if over is None:
            return None
        told = session.journal.said(REASON, over.about)
        if told is not None and told >= over.told_since:
            await session.journal.conclude(inbound.id, "silent", text=over.text, reason=REASON)
            return Reply(over.text, reason=REASON, silent=True)
        known = await session.journal.conclude(
            inbound.id, "notice", text=over.text, reason=REASON, about=over.about
        )
        return Reply(known.text, kind="notice", reason=REASON, seq=known.seq or 0)

    @contextmanager
    def running(self, inbound: Inbound) -> Iterator[None]:
        """Count a turn of its person while it runs."""
        person = person_of(inbound)
        self._running[person] += 1
        try:
            yield
        finally:
            self._running[person] -= 1
            if not self._running[person]:
                del self._running[person]

    def record(self, inbound: Inbound, usage: Usage) -> None:
        """Count a turn that has ended, and what it cost."""
        self._spending.record(inbound.key, person_of(inbound), usage)

    def _over(self, person: str) -> Over | None:
        now = self._clock()
        closed = self._spending.closed_until()
        if closed is not None:
            return Over("cost", COST_SAID, closed - DAY)
        ends = self._spending.within_hour(person) if self._turns_per_hour else []
        if not self._turns_per_hour or len(ends) + self._running[person] < self._turns_per_hour:
            return None
        free = ends[-self._turns_per_hour] if len(ends) >= self._turns_per_hour else now
        minutes = max(math.ceil((free + HOUR - now).total_seconds() / 60), 1)
        return Over(f"turns {person}", TURNS_SAID.format(self._turns_per_hour, minutes), now - HOUR)


def person_of(inbound: Inbound) -> str:
    """Name who asks: the sender within a channel, else the chat."""
    sender = inbound.sender.id
    return f"{inbound.channel}:{sender[:200]}" if sender else inbound.key
