"""Tries a hand-over again until it is durable, after longer and longer pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import MailboxDown

T = TypeVar("T")

MAX_BACK_OFF_S = 60.0
# Whoever asks for no wait each time is left alone for a second at this try, then for 2, 4 … 60.
UNHEARD_TRIES = 8


def back_off_s(tries: int, *, after_s: float | None = None, spread: float = 0.0) -> float:
    """Return the wait before the next try in seconds: 1, 2, 4 … 60, or what the provider asked, at most 60.

    Some ask for none at all, or name a time that is over by our clock, and refuse the next try as well: such
    a word counts for less with each try, or each waiting lane would ask twenty times a second.
    ``spread`` (0 … 1) shortens it by up to a fifth, so that waiting lanes do not come back all at once.
    """
    if after_s is None:
        wait = 2.0 ** min(max(tries - 1, 0), 6)
    else:
        wait = max(after_s, 2.0 ** (min(tries, UNHEARD_TRIES + 6) - UNHEARD_TRIES))
    return max(0.05, min(wait, MAX_BACK_OFF_S) * (1 - 0.2 * spread))


async def until_durable(
    put: Callable[[], Awaitable[T]],
    *,
    retried: tuple[type[Exception], ...] = (MailboxDown,),
    told: Callable[[Exception, int], None] | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Do ``put`` until it comes to its end, however long the queue is away; return what it returns.

    Args:
        put: the hand-over; doing it twice does no harm.
        retried: what is tried again; everything else is raised.
        told: hears of each failure, within its ``except``, with the number of tries so far.
        pause: waits between two tries, for 1, 2, 4 … 60 seconds.
    """
    tries = 0
    while True:
        try:
            return await put()
        except retried as error:
            tries += 1
            if told is not None:
                told(error, tries)
        await pause(back_off_s(tries))
