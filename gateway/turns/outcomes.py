"""Tells an inbound message that has already ended from one that has not, by transcript and journal."""

from __future__ import annotations

from collections.abc import Mapping

from channels.message import Inbound
from session.approvals.answers import COUNTED
from session.context.audience import told
from session.context.scopes import Chat
from session.store.store import Session
from session.transcript.attachments import Attachment
from session.transcript.journal import Known
from session.transcript.key import SessionKey
from session.turn import commands
from session.turn.turn import TOGETHER, Reply, Request

# The answer of another message serves it, too.
_TOGETHER = Reply(silent=True, reason=TOGETHER)


def request(inbound: Inbound) -> Request:
    """Turn a queue body into the session package's own request."""
    who = inbound.sender
    named = (("id", who.id), ("name", who.name), ("username", who.username))
    sender: Mapping[str, str] = {name: value for name, value in named if value}
    return Request(
        id=inbound.id,
        key=SessionKey(inbound.key),
        text=inbound.text,
        platform_id=inbound.platform_id,
        sender=sender,
        chat=chat(inbound),
        answer_to=inbound.answer_to or "",
        source=inbound.source,
        cron_job_id=inbound.cron_job_id,
        attachments=[Attachment(**file.model_dump()) for file in inbound.attachments],
    )


def chat(inbound: Inbound) -> Chat | None:
    """Return what a message says of its chat, direct or a group."""
    return told(inbound.key, inbound.id, group=inbound.group)


def command(inbound: Inbound) -> commands.Command | None:
    """Read the command that a message is; an edit is none, whatever its text."""
    return None if inbound.kind == "edit" else commands.parse(inbound.text)


def asks_model(inbound: Inbound) -> bool:
    """Say whether the model is asked for this message: no command is but ``/retry``."""
    found = command(inbound)
    return found is None or found.name == "retry"


def calls_model(inbound: Inbound) -> bool:
    """Say whether a model may be called on the way to its answer, a summary's included."""
    found = command(inbound)
    return found is None or found.name in ("retry", "compact")


def said(inbound: Inbound, text: str) -> str:
    """Return what is sent as the answer of a command; a press that counts is told by its own message."""
    return "" if inbound.kind == "action" and text in COUNTED else text


def stored(session: Session, inbound: Inbound) -> Reply | None:
    """Return what this message already ended in, by the transcript or the journal."""
    exchange = session.find(inbound.id)
    if exchange is not None and exchange.final is not None:
        line = session.line(exchange.final)
        known = session.journal.known(inbound.id) if line.get("stopped") else None
        # Its turn was broken off for a reason that its chat is told, and perhaps was not yet.
        if known is not None and known.kind == "notice":
            return _remembered(known)
        if line.get("stopped"):
            return Reply(silent=True)
        if line.get("message_id") != inbound.id:
            return _TOGETHER
        return Reply(text=str(line.get("content") or ""), repeated=True, seq=session.seq_of(inbound.id))
    known = session.journal.known(inbound.id)
    return None if known is None else _remembered(known)


def _remembered(known: Known) -> Reply:
    if known.kind == "archived" and "by" in known.extra:
        return _TOGETHER
    if known.kind in ("command", "archived") and known.text:
        return Reply(text=known.text, repeated=True, seq=known.seq or 0)
    if known.kind == "notice" and known.text:
        return Reply(text=known.text, kind="notice", reason=known.reason, repeated=True, seq=known.seq or 0)
    return Reply(silent=True)
