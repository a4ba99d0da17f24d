"""What becomes of a letter that is no Inbound: parked at once, its chat told where its address is sound."""

from __future__ import annotations

import contextlib

import structlog

from channels.errors import Unreadable
from gateway.errors import LetterLost
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs
from gateway.queue.retry import until_durable
from gateway.turns.notices import Notices

log = structlog.get_logger("worker")


async def park(letter: Letter, error: Unreadable, *, mailbox: Mailbox, notices: Notices) -> None:
    """Tell the chat and park the letter, however long the broker is away."""
    address = error.address

    async def once() -> None:
        if not letter.begin():
            return
        if address is not None:
            await notices.put(address, "unreadable", f"This message cannot be read: {error}.")
        key = address.key if address else None
        await mailbox.park(letter, ParkedAs(key, f"unreadable: {error}", 0))
        log.warning("letter.parked", id=letter.id, reason="unreadable", error=str(error))

    with contextlib.suppress(LetterLost):
        await until_durable(once)
