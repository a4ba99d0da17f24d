"""``/v1/parked``: the letters that were set aside, to look at, put back or drop."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.http.paging import PER_PAGE, Cursor, Limit, paged
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from gateway.service.pages import Place, digest
from gateway.service.parked import NotParked, ParkedLetters, ParkedTwice

Key = Annotated[str | None, Query(description="its chat, if several chats have a message with this id")]

Files = Annotated[bool, Query(description="include the files in media/ that each refers to")]


class ParkedRow(Shape):
    """A parked message; ``key`` is null if it is unreadable."""

    id: str
    box: Literal["inbound", "outbound"]
    key: str | None
    reason: str
    from_: str = Field(alias="from")
    attempts: int
    parked_at: str
    files: list[str] = Field(
        default=[], description="with ?files=true: the files in media/ that it refers to"
    )


class ParkedWhole(ParkedRow):
    """A parked letter with its body: as text, or in base64 where it is no UTF-8."""

    body: str | None = None
    body_base64: str | None = None


class ParkedOut(Shape):
    """Parked messages, oldest first; ``count`` is their total, ``next`` the cursor of the next page."""

    parked: list[ParkedRow]
    count: int
    next: str | None


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of parked letters."""
    router = APIRouter(prefix="/v1/parked")

    def letters() -> ParkedLetters:
        return ParkedLetters(chats.application.mailbox, chats.store, letters=chats.application.letters)

    @router.get("", summary="List parked messages, oldest first", response_model=ParkedOut, **needs("read"))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None, files: Files = False) -> Response:
        rows = await letters().parked(files=files)
        found, following = paged(rows, _place, limit=limit, cursor=cursor)
        return json_response({"parked": found, "count": len(rows), "next": following})

    @router.get(
        "/{message_id:path}",
        summary="Show a parked message in full",
        response_model=ParkedWhole,
        **needs("read", 404, 409),
    )
    async def get_one(message_id: str, key: Key = None) -> Response:
        return await _answer(letters().parked_one(message_id, key))

    @router.post(
        "/{message_id:path}/retry",
        summary="Put a parked message back at the end of its queue",
        response_model=ParkedRow,
        **needs("write", 404, 409),
    )
    async def post_retry(message_id: str, key: Key = None) -> Response:
        return await _answer(letters().retry(message_id, key))

    @router.delete(
        "/{message_id:path}",
        summary="Delete a parked message for good",
        response_model=ParkedRow,
        **needs("write", 404, 409),
    )
    async def delete(message_id: str, key: Key = None) -> Response:
        return await _answer(letters().drop(message_id, key))

    return router


def _place(row: Mapping[str, Any]) -> Place:
    told = (row["box"], row["key"], row["id"], row["reason"])
    return round(datetime.fromisoformat(row["parked_at"]).timestamp() * 1_000_000), digest(*told)


async def _answer(work: Awaitable[dict[str, Any]]) -> Response:
    try:
        return json_response(await work)
    except NotParked as error:
        raise HttpError(404, str(error), hint="GET /v1/parked lists them") from None
    except ParkedTwice as error:
        raise HttpError(409, str(error), hint="choose one with ?key=") from None
