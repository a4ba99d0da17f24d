"""``/v1/chats`` and ``/v1/search``: all chats with their last word and what runs, and a search over them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.health import LaneOut
from gateway.http.lanes import lanes_of_all
from gateway.http.paging import MAX_LIMIT as PAGE_LIMIT
from gateway.http.paging import PER_PAGE, Cursor, Limit, bad_cursor
from gateway.http.recall import MAX_LIMIT, MAX_TEXT_CHARS, HitOut
from gateway.http.session_shapes import SessionRowOut
from gateway.http.shape import Shape, needs
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.pages import BadCursor
from gateway.service.search import Search
from gateway.service.sessions import SessionService


class ChatOut(Shape):
    """A chat with its active session, or else its most recent one."""

    key: str
    id: str
    name: str | None
    active: bool
    last_message_at: str | None
    message_count: int
    sessions: int
    source: str
    last_role: str
    last_text: str


class ChatsOut(Shape):
    """The chats; pass ``now`` as ``since`` next time. ``count`` is the number of all chats.

    ``next`` is the cursor of the next page; ``lanes`` and ``silent`` are those of ``/v1/lanes``.
    """

    chats: list[ChatOut]
    next: str | None
    count: int
    now: int
    lanes: list[LaneOut]
    silent: list[int]


class SessionsOfChat(Shape):
    """A page of a chat's sessions: the active one first, then by last message.

    ``next`` is the cursor of the next page.
    """

    sessions: list[SessionRowOut]
    next: str | None


class SearchOut(Shape):
    """The best hits of the chats searched so far; pass ``next`` as ``start`` to search the others."""

    hits: list[HitOut]
    searched: int
    chats: int
    next: int | None
    all: bool


def routes(chats: ChatService) -> APIRouter:
    """Build the routes that look at all chats."""
    router = APIRouter(prefix="/v1")
    search = Search(chats)

    @router.get(
        "/chats",
        summary="List the chats with their last message and current activity",
        response_model=ChatsOut,
        **needs("read"),
    )
    async def get_chats(
        since: Annotated[
            int | None,
            Query(ge=0, le=2**53, description="only changes since `now` of the previous answer"),
        ] = None,
        limit: Annotated[int | None, Query(ge=1, le=PAGE_LIMIT, description="maximum number")] = None,
        cursor: Cursor = None,
    ) -> Response:
        listing = ChatList(chats).rows(since, limit, cursor)
        try:
            rows, lanes = await asyncio.gather(listing, lanes_of_all(chats))
        except BadCursor:
            raise bad_cursor() from None
        return json_response(rows | lanes)

    @router.get(
        "/chats/sessions",
        summary="List the sessions of a chat",
        response_model=SessionsOfChat,
        **needs("read"),
    )
    async def get_sessions(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
        limit: Limit = PER_PAGE,
        cursor: Cursor = None,
    ) -> Response:
        try:
            rows, following = await SessionService(chats).page_of(key, limit, cursor)
        except BadCursor:
            raise bad_cursor() from None
        return json_response({"sessions": [row.as_dict() for row in rows], "next": following})

    @router.get(
        "/search",
        summary="Search all chats, for up to one second per request",
        response_model=SearchOut,
        **needs("read"),
    )
    async def get_search(
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 20,
        start: Annotated[
            int, Query(ge=0, le=2**31, description="where to continue: `next` of the previous answer")
        ] = 0,
    ) -> Response:
        return json_response(await search.search(q, limit=limit, start=start))

    return router
