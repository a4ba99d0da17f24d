"""``/v1/parked``: the letters that were set aside, to look at, put back or drop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.http.desk import Desk
from gateway.http.errors import HttpError, json_response
from gateway.http.shelf import NotParked, ParkedTwice, Shelf

Key = Annotated[str | None, Query(description="which one, where several chats have a letter of this id")]


def routes(desk: Desk) -> APIRouter:
    """Build the routes of parked letters."""
    router = APIRouter(prefix="/v1/parked")

    def shelf() -> Shelf:
        return Shelf(desk.house.mailbox, desk.store)

    @router.get("", summary="List the parked letters, oldest first")
    async def get_all() -> Response:
        return json_response({"parked": await shelf().parked()})

    @router.get("/{message_id:path}", summary="Show one with its body")
    async def get_one(message_id: str, key: Key = None) -> Response:
        return await _answer(shelf().parked_one(message_id, key))

    @router.post("/{message_id:path}/retry", summary="Put one back at the end of its queue")
    async def post_retry(message_id: str, key: Key = None) -> Response:
        await _parked_whole(desk, message_id, key)
        return await _answer(shelf().retry(message_id, key))

    @router.delete("/{message_id:path}", summary="Remove one for good")
    async def delete(message_id: str, key: Key = None) -> Response:
        await _parked_whole(desk, message_id, key)
        return await _answer(shelf().drop(message_id, key))

    return router


async def _parked_whole(desk: Desk, message_id: str, key: str | None) -> None:
    """Wait for a letter that is being parked here: what is put back before that ends would go with it."""
    worker = desk.house.worker
    for lane in worker.lanes if worker is not None else ():
        entry = lane.find(message_id) if key in (None, lane.key) else None
        if entry is not None and entry.parking is not None:
            await entry.parking.wait()


async def _answer(work: Awaitable[dict[str, Any]]) -> Response:
    try:
        return json_response(await work)
    except NotParked as error:
        raise HttpError(404, str(error), hint="GET /v1/parked lists them") from None
    except ParkedTwice as error:
        raise HttpError(409, str(error), hint="say which by ?key=") from None
