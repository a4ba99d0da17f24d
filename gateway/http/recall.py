"""``/v1/memory/search``: what was said in a chat, found by its words."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.memory import AgentName, scope_of
from gateway.http.shape import Open, Shape, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.recall.finding import MAX_NEIGHBOURS

MAX_LIMIT = 1000
MAX_TEXT_CHARS = 10_000


class HitOut(Open):
    """Something that was found; [recall](memory.md#recall) says what the fields mean."""

    kind: Literal["message", "history", "memory", "fact"]
    key: str | None
    session_id: str | None
    message_id: str | None
    seq: int | None
    at: str | None
    speaker: str | None
    text: str
    score: float


class HitsOut(Shape):
    """Hits, best first; ``all`` is false while the index is still being built."""

    hits: list[HitOut]
    all: bool


def routes(chats: ChatService) -> APIRouter:
    """Build the route of searches."""
    router = APIRouter()

    @router.get(
        "/v1/memory/search",
        summary="Search a chat, best match first",
        response_model=HitsOut,
        **needs("read"),
    )
    async def get_search(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")] = 10,
        neighbours: Annotated[
            int, Query(ge=0, le=MAX_NEIGHBOURS, description="number of messages before and after each")
        ] = 0,
        agent: AgentName = None,
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        found = await services.recall.search(scope, key, q, limit=limit, neighbours=neighbours)
        hits = [hit.as_dict(neighbours=bool(neighbours)) for hit in found.hits]
        return json_response({"hits": hits, "all": found.all})

    return router
