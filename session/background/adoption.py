"""Puts a conversation that came from elsewhere in the place of a key's active session, whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from session.interchange.conversation import NO_TIME, Conversation
from session.store.rollover import FIELDS, SessionChange, changed, end
from session.store.session import View
from session.store.store import Session, Store
from session.transcript.agent import AGENT
from session.transcript.key import SessionKey, source_of
from session.transcript.line import encode, naive, read_time
from session.transcript.transcript import HEAD_FIELDS, Transcript

Pair = tuple[bytes, Mapping[str, Any]]
# Of our own fields in line 1's ``metadata`` those that a foreign file may set. The others decide something
# here: whether a chat is a group, whom its answers go to, what the history begins with.
_FROM_ELSEWHERE = ("name", "instructions", "model", "summary")
# In line 1's ``metadata``: what is said of a session here alone.
_OURS = ("session_id", "imported")


def is_busy(session: Session) -> bool:
    """Say whether the newest message of a session is still being answered."""
    if not len(session):
        return False
    id_ = session.line(len(session) - 1).get("message_id")
    found = session.find(id_) if isinstance(id_, str) else None
    return found is not None and found.final is None and session.journal.known(str(id_)) is None


def of_view(view: View) -> Conversation:
    """Return a session as the codecs take it."""
    transcript = view.transcript
    return Conversation(
        lines=tuple(view.lines()),
        key=view.key,
        session_id=view.session_id,
        created_at=view.created_at,
        inner={name: value for name, value in view.metadata.items() if name not in _OURS},
        extra={name: value for name, value in transcript.metadata.items() if name not in HEAD_FIELDS},
        last_consolidated=view.last_consolidated,
    )


def check(conversation: Conversation) -> None:
    """Let pass what can be stored. Raises LineTooLong for a line that cannot."""
    for line in conversation.lines:
        encode(line)


async def make_way(session: Session) -> Path | None:
    """Archive the active session for one that comes in; None where there was no message.

    One that came in itself, and in which nothing was said here, ended when it did where it came from.

    Raises:
        Fenced, StoreError: as of any ending.
    """
    return await session.change(partial(end, ended=_ended_elsewhere))


def _ended_elsewhere(transcript: Transcript) -> datetime | None:
    came = transcript.inner.get("imported")
    if not isinstance(came, dict) or came.get("messages") != len(transcript.messages):
        return None
    return read_time(came.get("ended_at"))


def _end_of(conversation: Conversation, now: datetime) -> str | None:
    """Say when a conversation ended, else when its last line was written; None where nobody knows."""
    named = read_time(conversation.inner.get("ended_at"))
    at = named if named is not None else conversation.last_at
    if at is None or not datetime.fromisoformat(NO_TIME) < at <= now:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds")


async def adopt(
    store: Store, key: SessionKey, conversation: Conversation, *, session_id: str, agent: str = ""
) -> bool:
    """Let ``key`` go on with ``conversation``, under the ULID ``session_id``, as a session of ``agent``.

    A turn of the key that runs begins again, on the lines that stand there now.

    Returns:
        False where the active session has messages; nothing was written.

    Raises:
        LineTooLong, Fenced, NewerFormat, StoreError: nothing was written.
    """
    pairs: list[Pair] = [(encode(line), line) for line in conversation.lines]
    inner = {
        name: value
        for name, value in conversation.inner.items()
        if name not in FIELDS or name in _FROM_ELSEWHERE
    }
    inner |= {**source_of(key), "session_id": session_id}
    if agent:
        inner[AGENT] = agent
    if (ended_at := _end_of(conversation, store.clock())) is not None:
        inner["imported"] = {"messages": len(pairs), "ended_at": ended_at}

    def job(change: SessionChange) -> bool:
        old = change.transcript
        if old.messages:
            return False
        before = old.inner.get("previous_session")
        base = change.base(session_id, finals=_finals(pairs))
        created = naive(conversation.created_at or change.now)
        old.metadata = {**old.metadata, **conversation.extra, "created_at": created}
        fields = {**inner, "previous_session": before} if before else inner
        change.journal(base)
        change.renew(inner=fields, offset=conversation.last_consolidated, more=pairs)
        return True

    return await store.both(key, key, lambda writer, _: changed(writer, job))


def _finals(pairs: list[Pair]) -> int:
    """Count the answers that stand in the lines: none of them is told to the chat again."""
    counted = Transcript("")
    for raw, line in pairs:
        counted.grow(raw, line)
    return len(counted.index.finals)
