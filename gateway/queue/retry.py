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


def back_off_s(
    tries: int, *, first_s: float = 1.0, after_s: float | None = None, spread: float = 0.0
) -> float:
    """Return the wait before the next try in seconds: 1, 2, 4 … 60, or the provider's Retry-After.

    A Retry-After of 0, or a date in the past, is ignored more and more from try to try.

    Args:
        tries: how many have failed.
        first_s: the wait after the first; each further one doubles it.
        after_s: the provider's Retry-After, which is never shortened.
        spread: 0 … 1, so that waiting lanes do not all return at once: shortens our own wait by up to a
            fifth, and lengthens the provider's by up to a tenth, 5 s at most.
    """
    if after_s is not None:
        first_s = 2.0 ** (1 - UNHEARD_TRIES)
    wait = min(first_s * 2.0 ** min(max(tries - 1, 0), 16), MAX_BACK_OFF_S) * (1 - 0.2 * spread)
    if after_s is not None:
        wait = max(wait, after_s + min(0.1 * after_s, 5.0) * spread)
    return max(0.05, wait)


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
