"""What becomes of a letter that is no Inbound: parked at once, its chat told where its address is sound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from channels.errors import Unreadable
from durable import first_of
from gateway.errors import LetterLost
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs
from gateway.queue.retry import back_off_s, until_durable
from gateway.turns.notices import Notices

log = structlog.get_logger("worker")

# After so many errors that nobody foresaw the chat is told nothing: its address may be what breaks.
TELL_CRASHES_MAX = 2
# After so many the letter is left in its queue.
CRASHES_MAX = 5


async def park(
    letter: Letter,
    error: Unreadable,
    *,
    mailbox: Mailbox,
    notices: Notices,
    closing: asyncio.Event,
    sleep: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
) -> None:
    """Tell the chat and park the letter, however long the broker is away.

    What fails in a way that nobody foresaw is tried again, at last without the notice. A letter that cannot
    be parked even then is not acknowledged: it comes again when its queue is opened the next time, and so
    does one that is not parked when ``closing`` is set.
    """
    crashes = 0

    async def pause(after_s: float) -> None:
        await first_of(closing.wait(), sleep(after_s))

    async def once() -> None:
        if closing.is_set() or not letter.begin():
            return
        address = error.address
        if address is not None and crashes < TELL_CRASHES_MAX:
            await notices.put(address, "unreadable", f"This message cannot be read: {error}.")
        key = address.key if address else None
        await mailbox.park(letter, ParkedAs(key, f"unreadable: {error}", 0))
        log.warning("letter.parked", id=letter.id, reason="unreadable", error=str(error))

    while True:
        try:
            await until_durable(once, pause=pause)
        except LetterLost:
            # It comes again, here or to another daemon, and is parked there.
            return
        except Exception:
            # One letter ends here: nobody but this loop tries it again in this process.
            crashes += 1
            log.exception("parking.crashed", id=letter.id, tries=crashes)
        else:
            return
        if crashes >= CRASHES_MAX:
            log.error("letter.left", id=letter.id, tries=crashes)
            return
        await pause(back_off_s(crashes))
