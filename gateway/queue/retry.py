"""Tries a hand-over again until it is durable, after longer and longer pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import MailboxDown

T = TypeVar("T")

MAX_BACK_OFF_S = 60.0


def back_off_s(tries: int, *, after_s: float | None = None, spread: float = 0.0) -> float:
    """Return the wait before the next try in seconds: 1, 2, 4 … 60, or what the provider asked, at most 60.

    ``spread`` (0 … 1) shortens it by up to a fifth, so that waiting lanes do not come back all at once.
    """
    wait = after_s if after_s is not None else 2.0 ** min(max(tries - 1, 0), 6)
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
