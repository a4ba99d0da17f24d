"""``GET /v1/lanes``: what runs and waits in which chat, in all processes of the gateway."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.health import LaneOut
from gateway.http.shape import Shape, needs
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService

WITHIN_S: Final = 1.0


class LanesOut(Shape):
    """Chats with unanswered messages; ``silent`` are the process ids of workers that did not answer."""

    lanes: list[LaneOut]
    silent: list[int]


def routes(chats: ChatService) -> APIRouter:
    """Build the route of lanes."""
    router = APIRouter(prefix="/v1")

    @router.get(
        "/lanes",
        summary="List running and waiting messages by chat, in all processes",
        response_model=LanesOut,
        **needs("read"),
    )
    async def get_lanes() -> Response:
        return json_response(await lanes_of_all(chats))

    return router


async def lanes_of_all(chats: ChatService) -> dict[str, Any]:
    """Return the ``lanes`` of this gateway, and which of its workers were ``silent``."""
    workers = chats.application.workers
    if workers is None:
        return {"lanes": ChatList(chats).lanes(), "silent": []}
    found = await workers.ask_by_number("lanes", within_s=WITHIN_S)
    return {"lanes": list(chain(*found.values())), "silent": sorted(workers.silent(found))}
