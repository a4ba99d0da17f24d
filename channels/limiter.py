"""How fast one token may send. One process at a time runs the adapter of a token, and so its limiter."""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from channels.base import steady_s

# The name under which what holds for every chat is kept.
_ALL: Final = ""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` sends in any ``per_s`` seconds."""

    count: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What a platform lets one token do: over all chats, in one chat, in one group."""

    overall: Rate
    chat: Rate
    group: Rate | None = None

    @property
    def window_s(self) -> float:
        """For how long a send counts."""
        return max(each.per_s for each in (self.overall, self.chat, self.group) if each is not None)


_KNOWN: Final = {
    "telegram": Rates(overall=Rate(30, 1.0), chat=Rate(3, 3.0), group=Rate(20, 60.0)),
    "discord": Rates(overall=Rate(50, 1.0), chat=Rate(5, 5.0)),
}
_OTHER: Final = Rates(overall=Rate(20, 1.0), chat=Rate(5, 5.0))


def rates_of(name: str) -> Rates:
    """Return the rates of a platform; careful ones where they are not known."""
    return _KNOWN.get(name, _OTHER)


@dataclass(slots=True)
class _Claim:
    """When one send may go: by the rates of its chat, and by the one over all."""

    chat: float | None = None
    all: float | None = None


async def _forgotten(chat: str, after_s: float) -> None:
    return


class Limiter:
    """One limiter per token.

    Args:
        sent: what was sent before a restart: its chat, and how many seconds ago.
        paused: what was paused before a restart: its chat ('': every chat), and for how many seconds more.
        noted: called with the chat ('': every chat) and the seconds of each pause, for the next restart.
        clock: seconds since the machine was started; no change of the wall clock moves it.
    """

    def __init__(
        self,
        rates: Rates,
        *,
        sent: Iterable[tuple[str, float]] = (),
        paused: Iterable[tuple[str, float]] = (),
        noted: Callable[[str, float], Awaitable[None]] = _forgotten,
        clock: Callable[[], float] = steady_s,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._rates = rates
        self._noted = noted
        self._clock = clock
        self._sleep = sleep
        # When something was sent, and until when nothing may be, by chat.
        self._sent: dict[str, list[float]] = {}
        self._until = {_of(chat): clock() + left_s for chat, left_s in paused}
        # Those that wait: their instants, in order.
        self._queues: dict[str, list[float]] = {}
        for chat, ago_s in sent:
            self._count(_of(chat), clock() - ago_s)

    async def wait(self, chat_id: str, *, group: bool) -> None:
        """Return when one send to a chat may go; a topic (``-100:topic:5``) counts with its chat."""
        chat = _of(chat_id)
        claim = _Claim()
        rates = [self._rates.chat]
        if group and self._rates.group is not None:
            rates.append(self._rates.group)
        try:
            while (after_s := self._step(chat, rates, claim)) > 0:
                await self._sleep(after_s)
        finally:
            self._leave(chat, claim)

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        """Send nothing to this chat (None: to any) for ``after_s`` seconds, as the platform asked."""
        chat = _ALL if chat_id is None else _of(chat_id)
        until = self._clock() + after_s
        if until > self._until.get(chat, 0.0):
            self._until[chat] = until
            await self._noted(chat, after_s)

    # ── decisions ─────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, chat: str, at: float) -> None:
        for queue in (chat, _ALL):
            insort(self._sent.setdefault(queue, []), at)

    def _forget(self, now: float) -> None:
        older = now - self._rates.window_s
        self._sent = {
            chat: kept for chat, times in self._sent.items() if (kept := [at for at in times if at > older])
        }
        self._until = {chat: until for chat, until in self._until.items() if until > now}

    def _step(self, chat: str, rates: Sequence[Rate], claim: _Claim) -> float:
        """Return the seconds until it is worth to look again; 0: it goes now, and is counted."""
        now = self._clock()
        self._forget(now)
        claim.chat = self._claim(chat, rates, claim.chat, now=now)
        if claim.chat > now:
            self._forsake(_ALL, claim.all)
            claim.all = None
            return claim.chat - now
        claim.all = self._claim(_ALL, [self._rates.overall], claim.all, now=now)
        if claim.all > now:
            return claim.all - now
        self._leave(chat, claim)
        self._count(chat, now)
        return 0.0

    def _claim(self, queue: str, rates: Sequence[Rate], own: float | None, *, now: float) -> float:
        """Take the first free instant of a queue, behind all that came before; a claim is kept."""
        self._forsake(queue, own)
        waiting = self._queues.setdefault(queue, [])
        ahead = waiting if own is None else waiting[: bisect_right(waiting, own)]
        before = sorted([*self._sent.get(queue, ()), *ahead])
        at = max(now, own or 0.0, self._until.get(queue, 0.0))
        for rate in rates:
            if len(before) >= rate.count:
                at = max(at, before[-rate.count] + rate.per_s)
        insort(waiting, at)
        return at

    def _forsake(self, queue: str, own: float | None) -> None:
        waiting = self._queues.get(queue, [])
        if own is not None and own in waiting:
            waiting.remove(own)
        if not waiting:
            self._queues.pop(queue, None)

    def _leave(self, chat: str, claim: _Claim) -> None:
        self._forsake(chat, claim.chat)
        self._forsake(_ALL, claim.all)
        claim.chat = claim.all = None


def _of(chat_id: str) -> str:
    return chat_id.partition(":")[0]
