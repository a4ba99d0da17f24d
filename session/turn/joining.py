"""Several messages that one answer serves: those that entered its turn, and turns stopped for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from session.context.request import Request
from session.store.session import Session
from session.store.view import View
from session.transcript.history import is_record
from session.transcript.index import Exchange
from session.transcript.line import make_line
from session.transcript.withdrawal import text_of

Line = dict[str, Any]


class Joins(Protocol):
    """Knows which other messages wait that the answer of a turn may serve, too."""

    def take(self) -> Sequence[Request]:
        """Return those that enter the turn now, oldest first and each once; called before each request."""
        ...


def parts_of(session: View, message_id: str) -> list[Line]:
    """Return the user lines of other messages that entered the turn of this one, oldest first."""
    exchange = session.find(message_id)
    if exchange is None:
        return []
    return [line for line in _questions(session, exchange, message_id) if line.get("part_of") == message_id]


def served(session: View, message_id: str) -> list[Line]:
    """Return the user lines that the answer of a stored turn serves, oldest first.

    Before those of the turn itself come those of turns that were stopped for it, one for the other.
    """
    exchange = session.find(message_id)
    if exchange is None:
        return []
    lines = _questions(session, exchange, message_id)
    before = stopped_before(session, exchange.start)
    while before is not None:
        found = session.find(before)
        # An id that was asked anew later stands behind the turn that it was stopped for.
        if found is None or found.start >= exchange.start:
            break
        exchange = found
        lines = [*_questions(session, exchange, before), *lines]
        before = stopped_before(session, exchange.start)
    return lines


def stopped_before(session: View, at: int) -> str | None:
    """Return the id of the turn right before line ``at`` that was stopped for the next message."""
    while at > 0:
        at -= 1
        line = session.line(at)
        if is_record(line) and line["kind"] != "undo":
            continue
        id_ = line.get("message_id")
        return id_ if line.get("interrupted") is True and isinstance(id_, str) else None
    return None


def together(session: Session, request: Request, first: Sequence[Request]) -> Request:
    """Return the request with the texts of all messages that its turn begins with: what it is about."""
    parts = parts_of(session, request.id)
    if not parts and not first:
        return request
    texts = [text_of(parts), *(part.text for part in first)]
    if not any(texts):
        return request
    return replace(request, text="\n\n".join(filter(None, (request.text, *texts))))


async def split(session: Session, message_id: str, now: str) -> bool:
    """Withdraw a turn of several messages of which only the questions are stored: each is then asked alone.

    Returns:
        False where it is none, or a tool may have acted in it: nothing was written.

    Raises:
        Fenced, StoreError: nothing was written.
    """
    exchange = session.find(message_id)
    if exchange is None or not exchange.tail or not parts_of(session, message_id):
        return False
    if any(line["role"] != "user" and not is_record(line) for line in session.lines(exchange.start)):
        return False
    await session.append([make_line("system", "", now, kind="undo", **{"from": exchange.start})])
    return True


def _questions(session: View, exchange: Exchange, message_id: str) -> list[Line]:
    return [
        line
        for line in session.lines(exchange.start, exchange.stop)
        if line.get("role") == "user"
        and isinstance(line.get("message_id"), str)
        and message_id in (line["message_id"], line.get("part_of"))
    ]
