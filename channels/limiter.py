"""How fast one token may send. One process at a time runs the adapter of a token, and so its limiter."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

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
        # When something was sent, in order, and until when nothing may be, by chat.
        self._sent: dict[str, list[float]] = {}
        self._until = {_of(chat): clock() + left_s for chat, left_s in paused}
        # Who waits goes in the order of asking: in its chat, then among all chats.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for chat, ago_s in sent:
            self._count(_of(chat), clock() - ago_s)

    async def wait(self, chat_id: str, *, group: bool) -> None:
        """Return when one send to a chat may go; a topic (``-100:topic:5``) counts with its chat."""
        chat, rates = _of(chat_id), [self._rates.chat]
        if group and self._rates.group is not None:
            rates.append(self._rates.group)
        async with self._turn(chat):
            while True:
                await self._free(chat, rates)
                async with self._turn(_ALL):
                    await self._free(_ALL, [self._rates.overall])
                    # The chat may have been paused meanwhile; then others go first.
                    if self._left_s(chat, rates) <= 0:
                        self._count(chat, self._clock())
                        return

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        """Send nothing to this chat (None: to any) for ``after_s`` seconds, as the platform asked."""
        chat = _ALL if chat_id is None else _of(chat_id)
        until = self._clock() + after_s
        if until > self._until.get(chat, 0.0):
            self._until[chat] = until
            await self._noted(chat, after_s)

    def _turn(self, chat: str) -> asyncio.Lock:
        return self._turns.setdefault(chat, asyncio.Lock())

    async def _free(self, chat: str, rates: Sequence[Rate]) -> None:
        while (left_s := self._left_s(chat, rates)) > 0:
            await self._sleep(left_s)

    def _left_s(self, chat: str, rates: Sequence[Rate]) -> float:
        """Return the seconds until one more send may go; 0 or less: now."""
        sent = self._sent.get(chat, [])
        free = [sent[-rate.count] + rate.per_s for rate in rates if len(sent) >= rate.count]
        return max([self._until.get(chat, 0.0), *free]) - self._clock()

    def _count(self, chat: str, at: float) -> None:
        """Count a send, and forget what is older than any window."""
        for each in (chat, _ALL):
            insort(self._sent.setdefault(each, []), at)
        now = self._clock()
        recent = {
            each: [at for at in times if at > now - self._rates.window_s]
            for each, times in self._sent.items()
        }
        self._sent = {each: times for each, times in recent.items() if times}
        self._until = {each: until for each, until in self._until.items() if until > now}


def _of(chat_id: str) -> str:
    return chat_id.partition(":")[0]
