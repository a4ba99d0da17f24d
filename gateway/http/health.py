"""``/healthz``, ``/readyz`` and ``/v1/status``: alive, ready, and what goes on."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gateway.http.desk import Desk
from gateway.http.errors import json_response


def routes(desk: Desk) -> APIRouter:
    """Build the routes that ask after the daemon itself."""
    router = APIRouter()

    @router.get("/healthz", summary="Whether the process answers")
    async def get_healthz() -> Response:
        return json_response({"alive": True})

    @router.get("/readyz", summary="Whether queue, lanes and HTTP are up; else 503")
    async def get_readyz() -> Response:
        ready, parts = desk.house.readiness()
        up = {"up": True, "since": desk.house.started_at.isoformat(), "error": ""}
        return json_response({"ready": ready, "parts": parts | {"http": up}}, 200 if ready else 503)

    @router.get("/v1/status", summary="Lanes, queue depths, parts, tokens and cost today")
    async def get_status() -> Response:
        return json_response(await desk.house.status())

    return router
