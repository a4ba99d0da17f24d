"""Tells a chat why it has no answer yet, or none at all; each notice once, numbered with the replies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from channels.errors import Address
from channels.message import Inbound
from gateway.queue.mailbox import Mailbox, Post
from gateway.turns import replies
from gateway.turns.events import EventKind, Events
from session.store.store import Session
from session.transcript.journal import Told
from session.transcript.key import is_subagent


class Notices:
    """Puts notices into the outbound box of their chat, and shows what goes out to whoever watches."""

    def __init__(self, *, mailbox: Mailbox, events: Events, clock: Callable[[], datetime]) -> None:
        self._mailbox = mailbox
        self._events = events
        self._clock = clock

    async def put(self, to: Inbound | Address, reason: str, text: str, *, seq: int = 0) -> None:
        """Return when the notice is durable; the same reason for the same message is the same notice."""
        if is_subagent(to.key):
            # Nobody reads along: how it ends is told to its parent.
            return
        post = replies.notice(to, reason, text, self._clock(), seq=seq)
        await self._mailbox.put(post)
        await self.show("notice", to, post, text, seq)

    async def tell(self, session: Session, inbound: Inbound, reason: str, text: str) -> Told:
        """Note a notice in the journal, which numbers it, and put it; after a crash the same one again."""
        noted = session.journal.noted(inbound.id, reason)
        if noted is None:
            noted = await session.journal.note(inbound.id, reason=reason, text=text)
        await self.put(inbound, reason, noted.text, seq=noted.seq)
        return noted

    async def show(self, kind: EventKind, to: Inbound | Address, post: Post, text: str, seq: int) -> None:
        """Let whoever watches see what goes to a platform; web and terminal see it by their delivery."""
        if self._events.watched(to.key) and not replies.is_local(to):
            await self._events.tell(kind, to.key, to.id, text=text, seq=seq, event_id=post.id)
