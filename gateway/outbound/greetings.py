"""Tells whoever was let in that the door is open, once, also where no daemon ran when it was approved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from channels.errors import ChannelError
from channels.message import Outbound, now_text
from channels.pairing import AccessRequest, Pairing
from gateway.errors import MailboxError
from gateway.queue.mailbox import Mailbox, Post, outbound

log = structlog.get_logger("greetings")

# Whoever approves does so in a process of its own, of which only the database tells.
LOOK_S = 3.0
PERSON_SAID = "You are approved. I will answer you here from now on."
GROUP_SAID = "This group is approved. I will answer here from now on."


class Greetings:
    """Tells those who were approved on one channel and do not know it yet."""

    def __init__(
        self,
        name: str,
        *,
        state: Path,
        mailbox: Mailbox,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._name = name
        self._pairing = Pairing(state)
        self._mailbox = mailbox
        self._sleep = sleep

    async def run(self) -> None:
        """Tell everybody until cancelled; what fails is tried again at the next look."""
        while True:
            try:
                await self._look()
            except (ChannelError, MailboxError) as error:
                log.warning("greeting.waits", channel=self._name, error=str(error))
            await self._sleep(LOOK_S)

    async def _look(self) -> None:
        for entry in await asyncio.to_thread(self._pairing.to_greet, self._name):
            await self._mailbox.put(_post(entry))
            # A kill in between puts it again under the same id, which is in the send log.
            await asyncio.to_thread(self._pairing.greeted, entry)
            log.info("greeting.put", channel=self._name, id=entry.greet)


def _post(entry: AccessRequest) -> Post:
    key = f"{entry.channel}:{entry.chat}"
    out = Outbound(
        id=entry.greet,
        key=key,
        channel=entry.channel,
        chat_id=entry.chat,
        text=GROUP_SAID if entry.kind == "group" else PERSON_SAID,
        kind="proactive",
        created_at=now_text(),
    )
    return Post(outbound(entry.channel), key, out.id, out.to_bytes())
