"""Tells an inbound message that has already ended from one that has not, by transcript and journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from channels.cron.jobs import ABOUT
from channels.message import Inbound, times
from gateway.queue.mailbox import carried
from session.approvals.answers import COUNTED
from session.context.audience import told
from session.context.enclosures import sends_files
from session.context.links import may_link
from session.context.quiet import QUIET
from session.context.scopes import Chat
from session.models.model import Payer
from session.store.store import Session
from session.transcript.attachments import Attachment
from session.transcript.journal import Known
from session.transcript.key import SUBAGENTS, SessionKey
from session.turn import commands
from session.turn.turn import TOGETHER, Reply, Request

# In ``meta`` of a subagent's result: on whose behalf it worked.
ASKER: Final = "asker"
# A quoted message is stored, and shown to the model, up to this length.
MAX_QUOTED_CHARS: Final = 4_000
# Why a message that was begun has no answer: its conversation was deleted meanwhile.
CLEARED: Final = "cleared"
CLEARED_SAID: Final = "The conversation was deleted before this message was answered."
# The answer of another message serves it, too.
_TOGETHER = Reply(silent=True, reason=TOGETHER)


def request(
    inbound: Inbound,
    payer: Payer | None = None,
    *,
    queued_at: datetime | None = None,
    typed: str = "",
    begins: bool = False,
) -> Request:
    """Turn a queue body into the session package's own request, for which ``payer`` pays.

    ``queued_at`` is when it came into its lane, ``typed`` what the person wrote where its text is less.
    ``begins``: nothing was said in the conversation yet.
    """
    who = inbound.sender
    named = (("id", who.id), ("name", who.name), ("username", who.username))
    sender: Mapping[str, str] = {name: value for name, value in named if value}
    return Request(
        id=inbound.id,
        key=SessionKey(inbound.key),
        text=inbound.text,
        platform_id=inbound.platform_id,
        sender=sender,
        asker=_asker(inbound),
        chat=chat(inbound),
        answer_to=inbound.answer_to or "",
        source=inbound.source,
        cron_job_id=inbound.cron_job_id,
        job_name=job_name(inbound),
        heartbeat=_about(inbound).get("heartbeat") is True,
        attachments=[Attachment(**file.model_dump()) for file in inbound.attachments],
        quoted=_quoted(inbound, begins=begins),
        forwarded_from=inbound.forwarded_from or "",
        payer=payer,
        sent_at=inbound.sent_at or "",
        traceparent=carried.get().get("traceparent", ""),
        typed=typed,
        **times(inbound, queued_at),
    )


def _quoted(inbound: Inbound, *, begins: bool) -> dict[str, Any]:
    """Return the message that this one replies to as a line stores it, its text cut."""
    quoted = inbound.quoted
    if quoted is None or (quoted.opens and not begins):
        return {}
    text = quoted.text
    if len(text) > MAX_QUOTED_CHARS:
        text = f"{text[:MAX_QUOTED_CHARS]}… [{len(text) - MAX_QUOTED_CHARS} more characters]"
    found = quoted.model_dump(exclude_defaults=True) | {"text": text}
    return found | (
        {"attachments": [file.model_dump(exclude={"caption"}) for file in quoted.attachments]}
        if quoted.attachments
        else {}
    )


async def answer_command(
    session: Session, inbound: Inbound, text: str, queued_at: datetime | None = None
) -> Reply:
    """Note in the journal how a command ended, and return its answer; empty: it says nothing."""
    known = await session.journal.conclude(inbound.id, "command", text=text, **times(inbound, queued_at))
    return Reply(text=text, seq=known.seq or 0, silent=not text)


def _asker(inbound: Inbound) -> Mapping[str, str]:
    """Return the person on whose behalf a subagent worked whose result this is."""
    asker = inbound.meta.get(ASKER) if inbound.kind == "result" else None
    return {name: str(value) for name, value in asker.items()} if isinstance(asker, dict) else {}


def job_name(inbound: Inbound) -> str:
    """Return the name of the job that asks; empty where none does."""
    name = _about(inbound).get("name")
    return name if isinstance(name, str) else inbound.cron_job_id or ""


def _about(inbound: Inbound) -> Mapping[str, Any]:
    """Return what a letter of the clock says of its job; nothing else is believed to."""
    about = inbound.meta.get(ABOUT) if inbound.source == "cron" else None
    return about if isinstance(about, dict) else {}


def chat(inbound: Inbound) -> Chat | None:
    """Return what a message says of its chat, direct or a group."""
    return told(inbound.key, inbound.id, group=inbound.group)


def may_enclose(inbound: Inbound, reply: Reply) -> bool:
    """Say whether files may go out with what a letter ended in: an answer of the model, told or not.

    What a subagent answers is read by a model, and takes none along.
    """
    if not reply.sends_files and not may_link(reply.text):
        return False
    if (reply.silent and not is_quiet(reply)) or reply.kind != "reply":
        return False
    return asks_model(command(inbound)) and inbound.channel != SUBAGENTS


def command(inbound: Inbound) -> commands.Command | None:
    """Read the command that a message is.

    An edit is none, nor what a subagent is told or tells, nor the words of somebody else.
    """
    if inbound.kind in ("edit", "result") or inbound.channel == SUBAGENTS or inbound.forwarded_from:
        return None
    return commands.parse(inbound.text)


def with_files(reply: Reply, files: Sequence[Attachment]) -> Reply:
    """Add the files that a model's answer links to, or its turn sends."""
    if files and is_quiet(reply):
        # A job that has nothing to say may still have something to show.
        return replace(reply, text="", silent=False, reason="", files=files)
    return replace(reply, files=files)


def is_quiet(reply: Reply) -> bool:
    """Say whether a letter has its answer, and that is not to be sent."""
    return reply.silent and reply.reason == QUIET


def asks_model(found: commands.Command | None) -> bool:
    """Say whether the model is asked for a message: for no command but ``/retry``."""
    return found is None or found.name == "retry"


def calls_model(found: commands.Command | None) -> bool:
    """Say whether a model may be called on the way to its answer, a summary's included."""
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
