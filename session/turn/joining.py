"""Several messages that one answer serves: those that entered its turn, and turns stopped for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from session.context.request import Request
from session.store.session import Session, View
from session.transcript.history import is_record, text_of
from session.transcript.index import Exchange
from session.transcript.line import make_line

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
    lines: list[Line] = []
    for exchange, id_ in _chain(session, message_id):
        lines = [*_questions(session, exchange, id_), *lines]
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


async def set_aside(session: Session, message_id: str, now: str) -> None:
    """Leave a turn that came to nothing out of what follows, with those that were stopped for it.

    A model that refuses a message refuses every request that holds it. ``/retry`` asks it once more, as long
    as nothing follows. Done twice, or where nothing is stored of the turn, it does nothing.

    Raises:
        Fenced, StoreError: nothing was written.
    """
    exchange = session.find(message_id)
    if exchange is None or not exchange.tail or exchange.final is not None:
        return
    first = min(before.start for before, _ in _chain(session, message_id))
    lines = [undo_from(exchange.start, now, set_aside=message_id)]
    if first < exchange.start:
        lines.insert(0, undo_from(first, now))
    await session.append(lines)


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
    if not only_asks(session, exchange):
        return False
    await session.append([undo_from(exchange.start, now)])
    return True


def only_asks(session: View, exchange: Exchange) -> bool:
    """Say whether questions alone are stored of a turn at the end: no tool can have acted in it."""
    return all(line["role"] == "user" or is_record(line) for line in session.lines(exchange.start))


def undo_from(start: int, now: str, **more: str) -> Line:
    """Build the record that withdraws the lines from ``start`` on."""
    return make_line("system", "", now, kind="undo", **{"from": start}, **more)


def _chain(session: View, message_id: str) -> Iterator[tuple[Exchange, str]]:
    """Yield the turn of a message, then those that were stopped one for the other before it, newest first."""
    exchange, id_ = session.find(message_id), message_id
    while exchange is not None:
        yield exchange, id_
        before = stopped_before(session, exchange.start)
        found = session.find(before) if before is not None else None
        # An id that was asked anew later stands behind the turn that it was stopped for.
        if before is None or found is None or found.start >= exchange.start:
            return
        exchange, id_ = found, before


def _questions(session: View, exchange: Exchange, message_id: str) -> list[Line]:
    return [
        line
        for line in session.lines(exchange.start, exchange.stop)
        if line.get("role") == "user"
        and isinstance(line.get("message_id"), str)
        and message_id in (line["message_id"], line.get("part_of"))
    ]
