"""``/v1/memory/history`` and ``/v1/memory/restore``: what memory said before."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.memory import AgentName, Key, scope_of
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.errors import NotNow


class RestoreIn(BaseModel):
    """A version of a chat's memory, from its history."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)
    version: str = Field(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$")
    agent: str | None = Field(default=None, max_length=64)


class VersionOut(Shape):
    """An earlier text of ``file``, replaced at ``at`` by ``cause``."""

    version: str
    file: str
    at: str
    cause: str
    bytes: int
    changed: str


class VersionsOut(Shape):
    """Versions, newest first."""

    versions: list[VersionOut]


class RestoredOut(Shape):
    """The restored file; ``former`` is the version of the replaced text, null if there was none."""

    version: str
    file: str
    changed: bool
    former: str | None


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of former texts."""
    router = APIRouter(prefix="/v1/memory")

    @router.get(
        "/history",
        summary="List earlier versions of memory, newest first",
        response_model=VersionsOut,
        **needs("read"),
    )
    async def get_history(
        key: Key,
        file: Annotated[
            Literal["MEMORY.md", "USER.md", "facts.jsonl"] | None, Query(description="only this file")
        ] = None,
        agent: AgentName = None,
    ) -> Response:
        services, scope = await scope_of(chats, key, agent)
        return json_response({"versions": await services.memory_history.history(key, scope, file=file or "")})

    @router.post(
        "/restore",
        summary="Restore an earlier version",
        response_model=RestoredOut,
        **needs("write", 404),
    )
    async def post_restore(body: RestoreIn) -> Response:
        services, scope = await scope_of(chats, body.key, body.agent)
        try:
            done = await services.memory_history.restore(body.key, scope, body.version)
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
