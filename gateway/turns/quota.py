"""Whether a message may still be asked: turns of an hour, cost and tokens of a day; the chat is told once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import durable
from channels.message import Inbound, Sender
from durable import BoundedDict
from session.context.scopes import Chat, Reader, Scopes, counts_as_group
from session.errors import OverCap
from session.models.caps import DAY, HOUR, next_day
from session.models.model import Payer, Usage
from session.models.spending import AGAIN_SAID, SPENT_SAID, Meter, Spending
from session.transcript.key import split
from session.turn.reply import Reply

if TYPE_CHECKING:
    from session.context.request import Request
    from session.store.store import Session

REASON = "limit"
TURNS_SAID = (
    "You have reached the hourly message limit ({}). Your messages will be answered again in about {} min."
)
TOO_LITTLE_SAID = "Too little of {} is left for this message. {}"
BROKEN_OFF_SAID = "This answer was stopped, because too little of {} is left to continue. {}"
KNOWN_MAX = 10_000
_WHOLE = {
    "cost_per_day_usd": "today's budget",
    "tokens_per_day": "today's token limit",
    "cost_per_chat_per_day_usd": "today's budget of this chat",
    "cost_per_person_per_day_usd": "your budget for today",
    "cost_per_job_per_day_usd": "today's budget of this job",
}
_SHORT = {
    "cost_per_day_usd": "for all chats",
    "cost_per_chat_per_day_usd": "for this chat",
    "cost_per_person_per_day_usd": "for you",
    "cost_per_job_per_day_usd": "for this job",
}


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that is reached: whose, what the chat is told, and since when it need not be told again."""

    about: str
    text: str
    told_since: datetime


def sender_of(inbound: Inbound) -> str:
    """Name who asks: the sender within a channel, else the chat."""
    sender = inbound.sender.id
    return f"{inbound.channel}:{sender[:200]}" if sender else inbound.key


def payer_of(scopes: Scopes) -> Callable[[Inbound], str]:
    """Return what names who asks: a person of ``[people]`` by that name in all chats, else the sender.

    A group that is listed is others', too: there the sender alone decides.
    """

    def payer(inbound: Inbound) -> str:
        sender = sender_of(inbound)
        # Only what has a sender knows its chat: the page and the clock do not say whether it is direct.
        direct: Chat | None = "direct" if inbound.sender.id else None
        group = counts_as_group(Reader(inbound.key, "group" if inbound.group else direct))
        listed = None if group else scopes.person(inbound.key)
        if listed is None and sender != inbound.key:
            listed = scopes.person(sender)
        return f"people/{listed}" if listed else sender

    return payer


class Quota:
    """The limits on what people may ask, over all their chats.

    ``person_of`` names who asks, in the rows of what models cost, too.
    """

    def __init__(
        self,
        spending: Spending,
        *,
        turns_per_hour: int = 0,
        person_of: Callable[[Inbound], str] = sender_of,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        """Keep the figures; 0 is no limit. What may be spent in a day are the caps of ``spending`` itself."""
        self._spending = spending
        self._turns_per_hour = turns_per_hour
        self._clock = clock
        self._person_of = person_of
        self._running: Counter[str] = Counter()
        # When a message of a chat was last answered: what it was told before that is not true any more.
        self._answered: BoundedDict[str, datetime] = BoundedDict(KNOWN_MAX)

    @property
    def limits(self) -> bool:
        """Whether there is any limit to keep."""
        return bool(self._turns_per_hour) or self._spending.limited

    async def refusal(self, session: Session, payer: Payer, *, turns: bool) -> Reply | None:
        """Return what a message over a limit ends in, already in the journal. None: it may be asked.

        ``turns`` says whether the messages of an hour are counted, too.

        Raises:
            NewerFormat, StoreError, Fenced: nothing was decided.
        """
        if not self.limits:
            return None
        over = await self._over(payer, turns=turns)
        return await self._conclude(session, payer, over) if over is not None else None

    async def refused(self, payer: Payer) -> str:
        """Say why a call without a session may not be made; empty: it may."""
        if not self.limits:
            return ""
        over = await self._over(payer, turns=True)
        return over.text if over is not None else ""

    async def is_reached(self, payer: Payer) -> bool:
        """Say whether a further message would be refused."""
        return await self._over(payer, turns=True) is not None

    async def broken_off(self, session: Session, payer: Payer, error: OverCap, *, begun: bool) -> Reply:
        """Return what a message ends in whose next request would go over a cap, already in the journal.

        One whose answer was ``begun`` is told in any case: its chat waits for it.

        Raises:
            StoreError, Fenced: nothing was decided.
        """
        words = BROKEN_OFF_SAID if begun else TOO_LITTLE_SAID
        text = words.format(_WHOLE[error.name], AGAIN_SAID)
        return await self._conclude(session, payer, Over(error.about, text, error.until - DAY), told=begun)

    async def _conclude(self, session: Session, payer: Payer, over: Over, *, told: bool = False) -> Reply:
        """End a message in a notice, in silence where its chat was told since; ``told``: in no case."""
        said = session.journal.said(REASON, over.about)
        since = max(over.told_since, self._answered.get(payer.key, over.told_since))
        if not told and said is not None and said >= since:
            await session.journal.conclude(payer.id, "silent", text=over.text, reason=REASON)
            return Reply(over.text, reason=REASON, silent=True)
        known = await session.journal.conclude(
            payer.id, "notice", text=over.text, reason=REASON, about=over.about
        )
        return Reply(known.text, kind="notice", reason=REASON, seq=known.seq or 0)

    @contextmanager
    def running(self, payer: Payer) -> Iterator[None]:
        """Count a turn of its person while it runs."""
        person = payer.person
        self._running[person] += 1
        try:
            yield
        finally:
            self._running[person] -= 1
            if not self._running[person]:
                del self._running[person]

    def payer(self, inbound: Inbound) -> Payer:
        """Say for whom the requests of a message count."""
        return Payer(inbound.key, self._person_of(inbound), inbound.cron_job_id or "", inbound.id)

    def meter(self, payer: Payer) -> Meter:
        """Make what counts the cost of a message's turn, and keeps its requests within the caps."""
        return self._spending.meter(payer)

    def record(self, payer: Payer, usage: Usage, model: str, *, answered: bool = True) -> None:
        """Count a turn that has ended, and what its requests to ``model`` cost."""
        self._spending.record(payer, usage, model=model)
        if answered and self._spending.limited:
            self._answered[payer.key] = self._clock()

    async def left(self, request: Request) -> list[str]:
        """Say in lines what is left to whoever sent a message."""
        if not self.limits:
            return []
        payer = self.payer(_letter(request))
        lines = [_left_words(row) for row in await self._spending.left(payer)]
        if self._turns_per_hour:
            ends = await self._spending.within_hour(payer.person)
            left = max(self._turns_per_hour - len(ends) - self._running[payer.person], 0)
            lines.append(f"left this hour: {left} of {self._turns_per_hour} messages")
        return lines

    async def _over(self, payer: Payer, *, turns: bool) -> Over | None:
        now, person = self._clock(), payer.person
        cap = await self._spending.reached(payer)
        if cap is not None:
            text = SPENT_SAID.format(_upper(_WHOLE[cap.name]), AGAIN_SAID)
            return Over(cap.about, text, next_day(now) - DAY)
        if not self._turns_per_hour or not turns:
            return None
        ends = await self._spending.within_hour(person)
        if len(ends) + self._running[person] < self._turns_per_hour:
            return None
        free = ends[-self._turns_per_hour] if len(ends) >= self._turns_per_hour else now
        minutes = max(math.ceil((free + HOUR - now).total_seconds() / 60), 1)
        return Over(f"turns {person}", TURNS_SAID.format(self._turns_per_hour, minutes), now - HOUR)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _left_words(row: Mapping[str, Any]) -> str:
    """Say what is left of a cap, as ``Spending.left`` shows it."""
    if row["limit"] not in _SHORT:
        return f"left until midnight UTC: {row['left']:,.0f} of {row['of']:,.0f} tokens"
    return f"left until midnight UTC {_SHORT[row['limit']]}: {row['left']:.4f} of {row['of']:.4f} USD"


def _letter(request: Request) -> Inbound:
    """Make of a request as much of a letter as says who sent it."""
    channel, chat_id = split(request.key)
    return Inbound(
        v=1,
        id=request.id,
        key=request.key,
        channel=channel,
        chat_id=chat_id,
        text="",
        sender=Sender(id=request.sender.get("id", "")),
        group=request.chat == "group",
        cron_job_id=request.cron_job_id,
    )
