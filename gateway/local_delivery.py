"""The third hand-over: an outbound letter is gone only after its channel accepted it."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from channels.errors import Unreadable
from channels.message import Outbound, read_outbound
from gateway.errors import LetterLost
from gateway.events import EventKind, Events
from gateway.intake import until_durable
from gateway.mailbox import Letter, Mailbox, outbound

log = structlog.get_logger("delivery")


class LocalDelivery:
    """Serves ``web`` or ``cli``: a reply is delivered once it is in the events, from where clients have it.

    The transcript is the record: a client that was away finds the reply there.
    """

    def __init__(self, channel: str, *, mailbox: Mailbox, events: Events, group: asyncio.TaskGroup) -> None:
        self.attached = asyncio.Event()
        self._group = group
        self._channel = channel
        self._mailbox = mailbox
        self._events = events

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with self._mailbox.take(outbound(self._channel)) as letters:
            self.attached.set()
            async for letter in letters:
                await self._deliver(letter)

    async def _deliver(self, letter: Letter) -> None:
        try:
            message = read_outbound(letter.body)
        except Unreadable as error:
            self._let_go(letter, unreadable=error)
            return
        kind: EventKind = "notice" if message.kind == "notice" else "reply"
        await self._events.tell(
            kind, message.key, message.in_reply_to, text=message.text, seq=_seq(message), event_id=message.id
        )
        self._let_go(letter)
        log.debug("reply.delivered", key=message.key, id=message.id)

    def _let_go(self, letter: Letter, *, unreadable: Unreadable | None = None) -> None:
        """Settle beside the next deliveries: what was told is told, and in order."""
        self._group.create_task(self._settle(letter, unreadable=unreadable), name="settle delivery")

    async def _settle(self, letter: Letter, *, unreadable: Unreadable | None = None) -> None:
        async def once() -> None:
            if not letter.begin():
                return
            if unreadable is None:
                await self._mailbox.settle(letter)
            else:
                reason = f"unreadable: {unreadable}"
                await self._mailbox.park(letter, key=None, reason=reason, attempts=0)
                log.warning("letter.parked", id=letter.id, reason=reason)

        with contextlib.suppress(LetterLost):
            await until_durable(once)


def _seq(message: Outbound) -> int:
    seq = message.meta.get("seq", 0)
    return seq if isinstance(seq, int) else 0
