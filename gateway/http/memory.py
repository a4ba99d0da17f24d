"""``/v1/memory``: what is remembered of a chat."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response
from gateway.http.messages import has_surrogate
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.memory.notes import Notes

Key = Annotated[str, Query(min_length=3, max_length=MAX_KEY_CHARS, description="channel:chat_id")]


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of memory."""
    router = APIRouter(prefix="/v1/memory")

    @router.get("", summary="Show the notes, the history and the facts of a chat")
    async def get(key: Key) -> Response:
        if not all(key.partition(":")) or has_surrogate(key):
            raise HttpError(400, "a key is channel:chat_id", hint="give ?key=telegram:12345678")
        services = chats.application.services
        if services is None:
            raise MailboxDown("the session side is not open yet")
        scope = await services.circles.of_key(key)
        facts = await services.facts.known.facts(scope)

        def read() -> dict[str, Any]:
            notes = Notes(scope.memory)
            memory, history = (data.decode("utf-8", "replace") for data in (notes.memory(), notes.history()))
            return {"memory": memory, "history": history, "facts": [fact.as_dict() for fact in facts]}

        return json_response(await asyncio.to_thread(read))

    return router
