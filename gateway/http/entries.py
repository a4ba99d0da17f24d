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
from session.transcript.pages import entries_page

Seq = Annotated[int | None, Query(ge=0, le=2**53)]


class AttachmentOut(Shape):
    """A file of a message; ``ref`` is its path in the workspace."""

    kind: str
    name: str
    mime: str
    size: int
    ref: str
    caption: str = ""


class CallOut(Shape):
    """A tool call, with its arguments as the model wrote them."""

    id: str
    name: str
    arguments: str


class SpentOut(Shape):
    """Usage of an answer, as in ``Metrics``; cached and unpriced tokens only if there are any."""

    prompt: int
    completion: int
    cost_usd: float | None
    cached: int = 0
    cache_written: int = 0
    unpriced: int = 0


class EntryOut(Shape):
    """An entry of a session; of the fields after ``text`` only those that it has.

    ``cut_from`` is the full length of a shortened text. ``first_kept`` of a summary is the first entry that
    the model still sees in full, ``since`` of an ``undo`` the first withdrawn one, ``edits`` of an ``edit``
    the changed message.
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
    """Entries of a session, oldest first; pass ``previous`` as ``before``, ``next`` as ``after``."""

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
        summary="List the entries of a session for display, from its end or its start",
        response_model=EntriesOut,
        **needs("read", 404),
    )
    async def get_entries(
        ulid: str,
        before: Seq = None,
        after: Seq = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 100,
    ) -> Response:
        messages = await files.messages(await row_of(files, ulid))

        def read() -> dict[str, Any]:
            found, previous, following = entries_page(messages, before=before, after=after, limit=limit)
            return {"entries": found, "total": len(messages), "previous": previous, "next": following}

        return json_response(await asyncio.to_thread(read))

    return router
