"""``/v1/pairing``: who asks for access, and letting somebody in or out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, TypeVar

from fastapi import APIRouter
from starlette.responses import Response

from channels.errors import ChannelError
from channels.pairing import NobodyThere, NoSuchCode, Pairing
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.paging import PER_PAGE, Cursor, Limit, paged
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService
from gateway.service.pages import Place, digest

T = TypeVar("T")


class PairingRow(Shape):
    """A request for access, or an approval."""

    code: str | None
    who: str
    name: str
    channel: str
    state: Literal["pending", "approved"]
    at: str


class PairingOut(Shape):
    """Requests and approvals, oldest first; ``next`` is the cursor of the next page."""

    pairing: list[PairingRow]
    next: str | None


class RevokedOut(Shape):
    """The revoked approvals."""

    revoked: list[PairingRow]


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of pairing."""
    router = APIRouter(prefix="/v1/pairing")

    def pairing() -> Pairing:
        return Pairing(chats.application.settings.state)

    @router.get("", summary="List access requests and approvals", response_model=PairingOut, **needs("admin"))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        rows = await _done(asyncio.to_thread(pairing().rows))
        found, following = paged(rows, _place, limit=limit, cursor=cursor)
        return json_response({"pairing": found, "next": following})

    @router.post(
        "/{code}/approve",
        summary="Approve the person or group that got a code",
        response_model=PairingRow,
        **needs("admin", 404),
    )
    async def post_approve(code: str) -> Response:
        entry = await _done(asyncio.to_thread(pairing().approve, code))
        return json_response(entry.as_row())

    @router.delete(
        "/{who:path}",
        summary="Revoke access and codes of telegram:123, or of 123 on all channels",
        response_model=RevokedOut,
        **needs("admin", 404),
    )
    async def delete(who: str) -> Response:
        gone = await _done(asyncio.to_thread(pairing().revoke, who))
        return json_response({"revoked": [entry.as_row() for entry in gone]})

    return router


def _place(row: Mapping[str, Any]) -> Place:
    return str(row["at"]), digest(row["channel"], row["who"], row["code"])


async def _done(work: Awaitable[T]) -> T:
    try:
        return await work
    except (NoSuchCode, NobodyThere) as error:
        raise HttpError(404, str(error), hint="GET /v1/pairing lists them") from None
    except ChannelError as error:
        raise unavailable(str(error), error.hint or "try again") from None
