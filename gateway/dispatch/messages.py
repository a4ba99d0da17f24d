"""What an inbound message is: its command, its chat, and the request that the session package gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from channels.cron.jobs import ABOUT
from channels.message import Inbound, Quoted, times
from gateway.queue.mailbox import carried
from session.approvals.answers import COUNTED
from session.context.links import may_link
from session.context.request import QUIET
from session.context.scopes import told
from session.models.model import Payer
from session.store.store import Session
from session.transcript.attachments import Attachment
from session.transcript.key import SUBAGENTS, SessionKey
from session.turn import commands
from session.turn.turn import Reply, Request

# In ``meta`` of a subagent's result: on whose behalf it worked.
ASKER: Final = "asker"
# A quoted message is stored, and shown to the model, up to this length.
MAX_QUOTED_CHARS: Final = 4_000


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
    is_timed = inbound.source == "cron"
    return Request(
        id=inbound.id,
        key=SessionKey(inbound.key),
        text=inbound.text,
        platform_id=inbound.platform_id,
        sender=sender,
        asker=_asker(inbound) if inbound.kind == "result" else {},
        chat=told(inbound.key, inbound.id, group=inbound.group),
        answer_to=inbound.answer_to or "",
        source=inbound.source,
        cron_job_id=inbound.cron_job_id,
        job_name=job_name(inbound) if is_timed else "",
        heartbeat=is_timed and _about(inbound).get("heartbeat") is True,
        attachments=[Attachment(**file.model_dump()) for file in inbound.attachments],
        quoted=_quoted(inbound.quoted, begins=begins) if inbound.quoted is not None else {},
        forwarded_from=inbound.forwarded_from or "",
        payer=payer,
        sent_at=inbound.sent_at or "",
        traceparent=carried.get().get("traceparent", ""),
        typed=typed,
        **times(inbound, queued_at),
    )


def _quoted(quoted: Quoted, *, begins: bool) -> dict[str, Any]:
    """Return the message that another one replies to as a line stores it, its text cut."""
    if quoted.opens and not begins:
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
    """Return the person on whose behalf the subagent worked whose result this is."""
    asker = inbound.meta.get(ASKER)
    return {name: str(value) for name, value in asker.items()} if isinstance(asker, dict) else {}


def job_name(inbound: Inbound) -> str:
    """Return the name of the job that asks; empty where none does."""
    name = _about(inbound).get("name")
    return name if isinstance(name, str) else inbound.cron_job_id or ""


def _about(inbound: Inbound) -> Mapping[str, Any]:
    """Return what a message of the clock says of its job; nothing else is believed to."""
    about = inbound.meta.get(ABOUT) if inbound.source == "cron" else None
    return about if isinstance(about, dict) else {}


def may_enclose(inbound: Inbound, reply: Reply) -> bool:
    """Say whether files may go out with what a message ended in: an answer of the model, told or not.

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
    """Say whether a message has its answer, and that is not to be sent."""
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
