"""``GET /v1/lanes``: what runs and waits in which chat, in all daemons of the workspace."""

from __future__ import annotations

from itertools import chain
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.health import LaneOut
from gateway.http.peers import WITHIN_S, Alone, Peers, united
from gateway.http.shape import Shape, needs
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService


class LanesOut(Shape):
    """Chats with unanswered messages; ``silent`` are the process ids that did not answer."""

    lanes: list[LaneOut]
    silent: list[int]


def routes(chats: ChatService, peers: Peers) -> APIRouter:
    """Build the route of lanes."""
    router = APIRouter(prefix="/v1")

    @router.get(
        "/lanes",
        summary="List running and waiting messages by chat, in all processes",
        response_model=LanesOut,
        **needs("read"),
    )
    async def get_lanes(alone: Alone = False) -> Response:
        return json_response(await lanes_of_all(chats, peers, alone=alone))

    return router


async def lanes_of_all(chats: ChatService, peers: Peers, *, alone: bool = False) -> dict[str, Any]:
    """Return the ``lanes`` of this daemon and, unless ``alone``, of the others, and who was ``silent``."""
    own, silent = await _own_lanes(chats)
    if alone:
        return {"lanes": own, "silent": silent}
    heard = await peers.ask(lambda client: client.lanes(alone=True))
    silent += [*heard.silent, *heard.refused]
    return {"lanes": united(chain(own, *heard.answers)), "silent": sorted(silent)}


async def _own_lanes(chats: ChatService) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the lanes of this gateway, and the process ids of its workers that did not answer."""
    workers = chats.application.workers
    if workers is None:
        return ChatList(chats).lanes(), []
    found = await workers.ask_by_number("lanes", within_s=WITHIN_S / 2)
    return united(chain(*found.values())), workers.silent(found)
