"""``/healthz``, ``/readyz`` and ``/v1/status``: alive, ready, and what goes on."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.http.security import Gate
from gateway.service.chats import ChatService


def routes(chats: ChatService, gate: Gate) -> APIRouter:
    """Build the routes that ask after the daemon itself."""
    router = APIRouter()

    @router.get("/healthz", summary="Whether the process answers")
    async def get_healthz() -> Response:
        return json_response({"alive": True})

    @router.get(
        "/readyz", summary="Whether queue, lanes and HTTP are up; else 503; why, for who has the token"
    )
    async def get_readyz(request: Request) -> Response:
        ready, parts = chats.application.readiness()
        up = {"up": True, "since": chats.application.started_at.isoformat(), "error": ""}
        parts |= {"http": up}
        if not gate.carries_token(request.scope):
            # An error names hosts, accounts and files: a load balancer needs to know none of them.
            parts = {name: {"up": part["up"]} for name, part in parts.items()}
        return json_response({"ready": ready, "parts": parts}, 200 if ready else 503)

    @router.get("/v1/status", summary="Lanes, queue depths, parts, tokens and cost today")
    async def get_status() -> Response:
        return json_response(await chats.application.status())

    return router
