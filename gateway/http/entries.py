"""``/v1/sessions/{ulid}/entries``: a conversation line by line, as a person reads it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.paging import MAX_LIMIT
from gateway.http.sessions import row_of
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from gateway.service.sessions import SessionService
from session.transcript.entries import page

Seq = Annotated[int | None, Query(ge=0, le=2**53)]


class AttachmentOut(Shape):
    """A file that came with a message; ``ref`` is where it lies in the workspace."""

    kind: str
    name: str
    mime: str
    size: int
    ref: str
    caption: str = ""


class CallOut(Shape):
    """A tool call; the arguments as the model wrote them."""

    id: str
    name: str
    arguments: str


class SpentOut(Shape):
    """What an answer took, as ``Metrics``; of a cache, and without a price, only where there are some."""

    prompt: int
    completion: int
    cost_usd: float | None
    cached: int = 0
    cache_written: int = 0
    unpriced: int = 0


class EntryOut(Shape):
    """A line of a conversation; of the fields behind ``text`` those that the line has.

    ``cut_from`` is how long a text is of which this is the beginning. A summary says from which line on the
    model sees every word (``first_kept``), an ``undo`` from which on it withdraws (``since``), an ``edit``
    which message it changes (``edits``).
    """

    seq: int
    kind: Literal["user", "assistant", "tool", "system", "overlay", "compact", "undo", "edit"]
    at: str | None
    text: str
    cut_from: int = 0
    message_id: str = ""
    final: bool = False
    stopped: bool = False
    is_error: bool = False
    interrupted: bool = False
    sender: str = ""
    attachments: tuple[AttachmentOut, ...] = ()
    calls: tuple[CallOut, ...] = ()
    usage: SpentOut | None = None
    answers: tuple[str, ...] = ()
    call_id: str = ""
    name: str = ""
    first_kept: int = 0
    tokens_before: int = 0
    since: int = 0
    edits: str = ""
    deleted: bool = False


class EntriesOut(Shape):
    """Lines of a session, oldest first; ``previous`` is the next ``before``, ``next`` the next ``after``."""

    entries: list[EntryOut]
    total: int
    previous: int | None
    next: int | None


def routes(chats: ChatService) -> APIRouter:
    """Build the route of entries."""
    router = APIRouter()
    files = SessionService(chats)

    @router.get(
        "/v1/sessions/{ulid}/entries",
        summary="List its lines as a person reads them, from its end or its beginning",
        response_model=EntriesOut,
        **needs("read", 404),
    )
    async def get_entries(
        ulid: str,
        before: Seq = None,
        after: Seq = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="how many at most")] = 100,
    ) -> Response:
        messages = await files.messages(await row_of(files, ulid))

        def read() -> dict[str, Any]:
            found, previous, following = page(messages, before=before, after=after, limit=limit)
            return {"entries": found, "total": len(messages), "previous": previous, "next": following}

        return json_response(await asyncio.to_thread(read))

    return router
