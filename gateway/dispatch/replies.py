"""What goes back to a chat for an inbound message: ids by meaning, so that a repeat is recognised.

The answer quotes its message and carries back its ``meta`` (what the adapter needs to answer), unless it goes
to another chat than it was asked in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from channels.errors import Address
from channels.message import Attachment, Button, Inbound, Outbound, now_text
from gateway.dispatch.events import LOCAL_CHANNELS, EventKind, Events
from gateway.queue.mailbox import Mailbox, Post, outbound
from session.store.store import Session
from session.transcript.journal import Told
from session.transcript.key import SUBAGENTS, is_subagent, split
from session.turn.reply import Reply

# In an Outbound's meta: its number among what the chat was told.
SEQ = "seq"
# At the end of the id of what takes the place of a prompt.
RESOLVED = ".done"


def reply(inbound: Inbound, answer: Reply, at: datetime) -> Post:
    """Make the Outbound of an answer: ``<inbound id>#reply``, or ``#notice.<reason>``."""
    if answer.kind == "notice":
        return notice(inbound, answer.reason, answer.text, at, seq=answer.seq)
    files = [Attachment(**file.as_dict()) for file in answer.files]
    return _post(inbound, "reply", answer.text, at, seq=answer.seq, files=files)


def notice(to: Inbound | Address, reason: str, text: str, at: datetime, *, seq: int = 0) -> Post:
    """Make the Outbound of a notice: ``<inbound id>#notice.<reason>``."""
    return _post(to, f"notice.{reason}", text, at, seq=seq)


def prompt(
    inbound: Inbound,
    reason: str,
    text: str,
    at: datetime,
    *,
    seq: int,
    buttons: Sequence[Button],
) -> Post:
    """Make a notice with buttons; the one of ``resolved`` takes its place later."""
    replaced_by = f"{inbound.id}#notice.{reason}{RESOLVED}"
    return _post(inbound, f"notice.{reason}", text, at, seq=seq, buttons=buttons, replaced_by=replaced_by)


def resolved(chat: str, message_id: str, reason: str, text: str, at: datetime) -> Post:
    """Make the notice that takes the place of a prompt."""
    channel, chat_id = split(chat)
    out = Outbound(
        id=f"{message_id}#notice.{reason}{RESOLVED}",
        key=chat,
        channel=channel or "cli",
        chat_id=chat_id,
        text=text,
        in_reply_to=message_id,
        kind="notice",
        created_at=now_text(at),
    )
    return Post(outbound(out.channel), chat, out.id, out.to_bytes())


def target(inbound: Inbound | Address) -> tuple[str, str, str]:
    """Return key, channel and chat id of the chat that gets the answer."""
    answer_to = getattr(inbound, "answer_to", None)
    if answer_to:
        channel, chat_id = split(answer_to)
        # A subagent is no chat: nobody would ever take the answer.
        if channel and channel != SUBAGENTS:
            return answer_to, channel, chat_id
    return inbound.key, inbound.channel, inbound.chat_id


def _post(
    to: Inbound | Address,
    suffix: str,
    text: str,
    at: datetime,
    *,
    seq: int,
    files: Sequence[Attachment] = (),
    buttons: Sequence[Button] = (),
    replaced_by: str | None = None,
) -> Post:
    out_id = f"{to.id}#{suffix}"
    kind: Literal["reply", "notice"] = "reply" if suffix == "reply" else "notice"
    key, channel, chat_id = target(to)
    asked = to if isinstance(to, Inbound) and to.key == key else None
    meta: dict[str, Any] = {}
    if asked is not None:
        meta = {name: value for name, value in asked.meta.items() if name != SEQ}
        if seq:
            meta[SEQ] = seq
    out = Outbound(
        id=out_id,
        key=key,
        channel=channel,
        chat_id=chat_id,
        text=text,
        in_reply_to=to.id,
        reply_to=asked.platform_id if asked is not None else None,
        kind=kind,
        attachments=list(files),
        created_at=now_text(at),
        buttons=list(buttons),
        replaced_by=replaced_by,
        meta=meta,
    )
    return Post(outbound(channel), key, out_id, out.to_bytes())


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
        post = notice(to, reason, text, self._clock(), seq=seq)
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
        if self._events.watched(to.key) and target(to)[1] not in LOCAL_CHANNELS:
            await self._events.tell(kind, to.key, to.id, text=text, seq=seq, event_id=post.id)
