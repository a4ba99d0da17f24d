"""What becomes of a letter that is no Inbound: parked at once, its chat told where its address is sound."""

from __future__ import annotations

import asyncio

import structlog

from channels.errors import Unreadable
from gateway.errors import LetterLost, MailboxDown
from gateway.mailbox import Letter, Mailbox
from gateway.notices import Notices
from gateway.policy import back_off_s

log = structlog.get_logger("worker")


async def park(letter: Letter, error: Unreadable, *, mailbox: Mailbox, notices: Notices) -> None:
    """Tell the chat and park the letter, however long the broker is away."""
    tries = 0
    address = error.address
    while letter.begin():
        try:
            if address is not None:
                await notices.put(address, "unreadable", f"This message cannot be read: {error}.")
            await mailbox.park(
                letter, key=address.key if address else None, reason=f"unreadable: {error}", attempts=0
            )
        except LetterLost:
            return
        except MailboxDown:
            tries += 1
            await asyncio.sleep(back_off_s(tries))
        else:
            log.warning("letter.parked", id=letter.id, reason="unreadable", error=str(error))
            return
