"""Recognises a message that has ended already: its stored outcome is sent again, and no model is asked."""

from __future__ import annotations

from typing import Final

from channels.message import Inbound
from gateway.dispatch import jobs, messages
from gateway.dispatch.commands import Orders
from gateway.dispatch.context import Ending, MessageContext
from session.context.links import sends_files
from session.context.request import QUIET
from session.store.store import Session
from session.transcript.journal import Known
from session.turn.turn import TOGETHER, Reply

# Why a message that was begun has no answer: its conversation was deleted meanwhile.
CLEARED: Final = "cleared"
CLEARED_SAID: Final = "The conversation was deleted before this message was answered."
# The answer of another message serves it, too.
_TOGETHER = Reply(silent=True, reason=TOGETHER)


class Deduplicate:
    """Finds what a message ended in before: it was handed on, answered out of line, or has an outcome."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the stored ending."""
        inbound, session = message.entry.inbound, message.session
        if inbound.kind == "edit":
            # An edit recognises what it did to its message.
            return None
        if inbound.source == "cron" and (handed_on := jobs.handed_on(session, inbound)) is not None:
            return handed_on
        message.command = messages.command(inbound)
        # Asked first: what was answered out of line is stored, too, and would be sent a second time.
        if message.command is not None and await self._orders.answered(inbound, message.command):
            return Reply(silent=True)
        return stored(session, inbound)


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
        text, sent = str(line.get("content") or ""), sends_files(line.get("tools_used"))
        if line.get("unsent") is True:
            return Reply(text=text, silent=True, reason=QUIET, repeated=True, sends_files=sent)
        return Reply(text=text, repeated=True, seq=session.seq_of(inbound.id), sends_files=sent)
    known = session.journal.known(inbound.id)
    return None if known is None else _remembered(known)


def _remembered(known: Known) -> Reply:
    if known.kind == "archived" and "by" in known.extra:
        return _TOGETHER
    if known.kind in ("command", "archived") and known.text:
        return Reply(text=known.text, repeated=True, seq=known.seq or 0)
    if known.kind == "notice" and known.text:
        return Reply(text=known.text, kind="notice", reason=known.reason, repeated=True, seq=known.seq or 0)
    if known.kind == "cleared":
        return Reply(text=CLEARED_SAID, silent=True, reason=CLEARED)
    return Reply(silent=True)
