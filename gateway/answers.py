"""What goes back to a chat for an inbound message: ids by meaning, so that a repeat is recognised."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from channels.errors import Address
from channels.message import Inbound, Outbound, now_text
from gateway.events import LOCAL_CHANNELS
from gateway.mailbox import Post, outbound
from session.key import split
from session.turn import Reply


def reply(inbound: Inbound, answer: Reply, at: datetime) -> Post:
    """Make the Outbound of an answer: ``<inbound id>#reply``, or ``#notice.<reason>``."""
    if answer.kind == "notice":
        return notice(inbound, answer.reason, answer.text, at, seq=answer.seq)
    return _post(inbound, f"{inbound.id}#reply", answer.text, "reply", at, answer.seq)


def notice(to: Inbound | Address, reason: str, text: str, at: datetime, *, seq: int = 0) -> Post:
    """Make the Outbound of a notice: ``<inbound id>#notice.<reason>``."""
    return _post(to, f"{to.id}#notice.{reason}", text, "notice", at, seq)


def target(inbound: Inbound | Address) -> tuple[str, str, str]:
    """Return key, channel and chat id of the chat that gets the answer."""
    answer_to = getattr(inbound, "answer_to", None)
    if answer_to:
        channel, chat_id = split(answer_to)
        if channel:
            return answer_to, channel, chat_id
    return inbound.key, inbound.channel, inbound.chat_id


def is_local(inbound: Inbound | Address) -> bool:
    """Say whether the answer goes to a client of ours (web, terminal), whose delivery sends the event."""
    return target(inbound)[1] in LOCAL_CHANNELS


def _post(
    to: Inbound | Address, out_id: str, text: str, kind: Literal["reply", "notice"], at: datetime, seq: int
) -> Post:
    key, channel, chat_id = target(to)
    meta: dict[str, Any] = {"seq": seq} if seq else {}
    out = Outbound(
        id=out_id,
        key=key,
        channel=channel,
        chat_id=chat_id,
        text=text,
        in_reply_to=to.id,
        reply_to=getattr(to, "platform_id", None),
        kind=kind,
        created_at=now_text(at),
        meta=meta,
    )
    return Post(outbound(channel), key, out_id, out.to_bytes())
