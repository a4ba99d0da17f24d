"""``/v1/memory/search``: what was said in a chat, found by its words."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.recall.finding import MAX_NEIGHBOURS

MAX_LIMIT = 1000
MAX_TEXT_CHARS = 10_000


def routes(chats: ChatService) -> APIRouter:
    """Build the route of searches."""
    router = APIRouter()

    @router.get("/v1/memory/search", summary="Find what was said in a chat, the best first")
    async def get_search(
        key: Annotated[str, Query(min_length=1, max_length=MAX_KEY_CHARS, description="channel:chat_id")],
        q: Annotated[str, Query(min_length=1, max_length=MAX_TEXT_CHARS, description="a question, or words")],
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="how many at most")] = 10,
        neighbours: Annotated[
            int, Query(ge=0, le=MAX_NEIGHBOURS, description="so many messages before and after each")
        ] = 0,
    ) -> Response:
        services = chats.application.services
        if services is None:
            raise MailboxDown("the session side is not open yet")
        if "\0" in key or not all(key.partition(":")):
            raise HttpError(400, "this is no key", hint="a key is channel:chat_id")
        scope = await services.circles.of_key(key)
        found = await services.recall.search(scope, key, q, limit=limit, neighbours=neighbours)
        hits = [hit.as_dict(neighbours=bool(neighbours)) for hit in found.hits]
        return json_response({"hits": hits, "all": found.all})

    return router
