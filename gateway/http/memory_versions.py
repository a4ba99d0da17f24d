"""``/v1/memory/history`` and ``/v1/memory/restore``: what memory said before."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.app.sessions import SessionServices
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.messages import has_surrogate
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.context.scopes import Scope
from session.errors import NotNow

Key = Annotated[str, Query(min_length=3, max_length=MAX_KEY_CHARS, description="channel:chat_id")]


class RestoreIn(BaseModel):
    """A version of a chat's memory, as the history shows it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)
    version: str = Field(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$")


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of former texts."""
    router = APIRouter(prefix="/v1/memory")

    async def of(key: str) -> tuple[SessionServices, Scope]:
        if "\0" in key or not all(key.partition(":")) or has_surrogate(key):
            raise HttpError(400, "this is no key", hint="a key is channel:chat_id")
        services = chats.application.services
        if services is None:
            raise MailboxDown("the session side is not open yet")
        return services, await services.circles.of_key(key)

    @router.get("/history", summary="List what memory said before, the newest first")
    async def get_history(
        key: Key,
        file: Annotated[
            Literal["MEMORY.md", "USER.md", "facts.jsonl"] | None, Query(description="of this file alone")
        ] = None,
    ) -> Response:
        services, scope = await of(key)
        return json_response({"versions": await services.former.history(key, scope, file=file or "")})

    @router.post("/restore", summary="Put back what memory said before")
    async def post_restore(body: RestoreIn) -> Response:
        services, scope = await of(body.key)
        try:
            done = await services.former.restore(body.key, scope, body.version)
        except NotNow as error:
            raise unavailable(str(error), error.hint) from error
        if done is None:
            raise HttpError(
                404,
                f"{body.key} has no version {body.version}",
                hint="GET /v1/memory/history?key= lists them",
            )
        return json_response(done.as_dict())

    return router
