"""``/v1/config`` and ``/v1/doctor``: what is configured, and how all that it stands on is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from gateway.app.status import status_of
from gateway.config.redact import shown_settings
from gateway.http.errors import json_response
from gateway.http.shape import Open, Shape, needs
from gateway.service.chats import ChatService

DOCTOR_WITHIN_S = 90.0


class ConfigOut(Open):
    """The whole configuration in force, table by table, as ``config show --json``; secrets are hidden."""

    workspace: str


class CheckOut(Shape):
    """A finding, with a fix if there is one."""

    name: str
    level: Literal["ok", "warn", "fail"]
    text: str
    cure: str


class DoctorOut(Shape):
    """The findings; ``complete`` is false if the time ran out before the last check."""

    checks: list[CheckOut]
    complete: bool


def routes(chats: ChatService) -> APIRouter:
    """Build the routes for whoever runs the gateway."""
    router = APIRouter(prefix="/v1")
    # Each run asks model and broker: whoever asks meanwhile waits for the one before.
    alone = asyncio.Lock()

    @router.get(
        "/config",
        summary="Show the effective configuration without secrets",
        response_model=ConfigOut,
        **needs("admin"),
    )
    async def get_config() -> Response:
        return json_response(await asyncio.to_thread(shown_settings, chats.application.settings))

    @router.get(
        "/doctor",
        summary="Run all checks of `doctor` within 90 s, with one request to the model",
        response_model=DoctorOut,
        **needs("admin"),
    )
    async def get_doctor() -> Response:
        # A daemon starts sooner without what only the doctor imports.
        from gateway.doctor.checks import examine

        async def daemon() -> Mapping[str, Any]:
            return await status_of(chats.application)

        found: list[dict[str, Any]] = []
        complete = True
        try:
            async with asyncio.timeout(DOCTOR_WITHIN_S), alone:
                async for check in examine(chats.application.settings, daemon=daemon):
                    # What was found before the time ran out is shown.
                    found.append(check.as_dict())  # noqa: PERF401
        except TimeoutError:
            complete = False
        return json_response({"checks": found, "complete": complete})

    return router
