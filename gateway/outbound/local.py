"""The third hand-over: an outbound letter is gone only after its channel accepted it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog

from channels.errors import Unreadable
from channels.message import Outbound, read_outbound
from durable import first_of
from gateway.dispatch.events import FILES, EventKind, Events
from gateway.dispatch.policy import broken
from gateway.errors import LetterLost
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs, outbound
from gateway.queue.retry import until_durable

log = structlog.get_logger("delivery")

# Clients read it as a JSON number, which many of them keep as a double.
SEQ_MAX = 2**53


class LocalSender:
    """Serves ``web`` or ``cli``: a reply is delivered once it is in the events, from where clients have it.

    The transcript is the record: a client that was away finds the reply there. Of files that go with a reply
    it is told before where they lie: people read these channels on the machine itself.
    """

    def __init__(
        self,
        channel: str,
        *,
        mailbox: Mailbox,
        events: Events,
        group: asyncio.TaskGroup,
        workspace: Path = Path(),
    ) -> None:
        self.attached = asyncio.Event()
        self._group = group
        self._channel = channel
        self._mailbox = mailbox
        self._events = events
        self._workspace = workspace
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Deliver until cancelled; then what is refused is tried no more, and comes again."""
        try:
            async with self._mailbox.take(outbound(self._channel)) as letters:
                self.attached.set()
                async for letter in letters:
                    try:
                        await self._deliver(letter)
                    except Unreadable as error:
                        self._let_go(letter, unreadable=error)
                    except Exception as error:
                        # One letter ends here: the loop serves all chats.
                        log.exception("letter.broken", id=letter.id)
                        self._let_go(letter, unreadable=broken(error))
        finally:
            self._closing.set()

    async def _deliver(self, letter: Letter) -> None:
        message = read_outbound(letter.body)
        kind: EventKind = "notice" if message.kind == "notice" else "reply"
        if message.attachments and message.in_reply_to:
            text = "\n".join(where(self._workspace, file.ref, file.caption) for file in message.attachments)
            named = f"{message.in_reply_to}#notice.{FILES}"
            await self._events.tell("notice", message.key, message.in_reply_to, text=text, event_id=named)
        await self._events.tell(
            kind, message.key, message.in_reply_to, text=message.text, seq=_seq(message), event_id=message.id
        )
        self._let_go(letter)
        log.debug("reply.delivered", key=message.key, id=message.id)

    def _let_go(self, letter: Letter, *, unreadable: Unreadable | None = None) -> None:
        """Settle beside the next deliveries: what was told is told, and in order."""
        self._group.create_task(self._settle(letter, unreadable=unreadable), name="settle delivery")

    async def _settle(self, letter: Letter, *, unreadable: Unreadable | None = None) -> None:
        tries = 0

        async def once() -> None:
            nonlocal tries
            tries += 1
            # The try under way when it ends is the last one.
            if (tries > 1 and self._closing.is_set()) or letter.lost:
                return
            if unreadable is None:
                await self._mailbox.settle(letter)
            else:
                reason = f"unreadable: {unreadable}"
                await self._mailbox.park(letter, ParkedAs(None, reason, 0))
                log.warning("letter.parked", id=letter.id, reason=reason)

        try:
            # It comes again with the connection, and is told again: clients know events by their ids.
            with contextlib.suppress(LetterLost):
                await until_durable(once, pause=self._pause)
        except Exception:
            # One letter ends here: it stays in its box, and comes again at the next start.
            log.exception("letter.not_settled", id=letter.id)

    async def _pause(self, after_s: float) -> None:
        await first_of(self._closing.wait(), timeout_s=after_s)


def where(workspace: Path, ref: str, caption: str) -> str:
    """Name a file by its path on the machine, and by its caption."""
    path = str((workspace / ref).absolute())
    return f"{path}: {caption}" if caption else path


def _seq(message: Outbound) -> int:
    """Return its place among what the chat was told; 0 where it says none, or none that can be counted on."""
    seq = message.meta.get("seq", 0)
    return seq if type(seq) is int and 0 <= seq < SEQ_MAX else 0
