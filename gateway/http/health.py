"""``/healthz``, ``/readyz`` and ``/v1/status``: alive, ready, and what goes on."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.app.status import readiness_of, status_of
from gateway.http.errors import json_response
from gateway.http.security import Gate
from gateway.http.shape import ErrorOut, Open, Shape, needs
from gateway.service.chats import ChatService


class AliveOut(Shape):
    """The process answers."""

    alive: Literal[True]


class PartOut(Open):
    """A part of the gateway; since when, and why it is down, is shown to who has a token."""

    up: bool
    since: str | None = None
    error: str = ""


class ReadyOut(Shape):
    """Whether queue, dispatcher and HTTP are up, and the state of each part."""

    ready: bool
    parts: dict[str, PartOut]


class LaneOut(Shape):
    """A chat with unanswered messages: ``id`` is being answered, retried or waits for an approval.

    ``waiting`` counts the messages after it; ``running_s`` is null while its turn does not run.
    """

    key: str
    id: str | None
    asking: str
    waiting: int
    running_s: float | None


class DepthOut(Open):
    """What waits in a box."""

    count: int
    oldest_at: str | None


class WorkerOut(Shape):
    """A worker process; ``error`` says why it is not up."""

    number: int
    pid: int
    up: bool
    partitions: list[int]
    since: str
    restarts: int
    error: str


class StatusOut(Open):
    """What ``status`` shows; ``queues`` is null while the queue is away."""

    version: str
    role: Literal["all", "channels", "session"]
    pid: int
    started_at: str
    ready: bool
    parts: dict[str, PartOut]
    model: str
    lanes: list[LaneOut]
    subagents: list[dict[str, str]]
    queues: dict[str, DepthOut] | None
    in_memory: dict[str, Any]
    unserved: list[dict[str, Any]]
    usage_today: dict[str, Any] | None
    limits: list[dict[str, Any]] | None
    memory: dict[str, Any] | None
    media_bytes: int
    workers: list[WorkerOut]
    max_file_bytes: int


def routes(chats: ChatService, gate: Gate) -> APIRouter:
    """Build the routes that ask after the daemon itself."""
    router = APIRouter()

    # Uptime monitors ask with HEAD.
    @router.head("/healthz", include_in_schema=False, **needs(None))
    @router.get("/healthz", summary="Liveness: the process answers", response_model=AliveOut, **needs(None))
    async def get_healthz() -> Response:
        return json_response({"alive": True})

    @router.head("/readyz", include_in_schema=False, **needs(None))
    @router.get(
        "/readyz",
        summary="Readiness: queue, dispatcher and HTTP are up, otherwise 503; with a token also the reason",
        response_model=ReadyOut,
        **needs(None, _503=ReadyOut | ErrorOut),
    )
    async def get_readyz(request: Request) -> Response:
        ready, parts = readiness_of(chats.application)
        up = {"up": True, "since": chats.application.started_at.isoformat(), "error": ""}
        parts |= {"http": up}
        if not gate.carries_token(request.scope):
            # An error names hosts, accounts and files: a load balancer needs to know none of them.
            parts = {name: {"up": part["up"]} for name, part in parts.items()}
        return json_response({"ready": ready, "parts": parts}, 200 if ready else 503)

    @router.get(
        "/v1/status",
        summary="Show chats in progress, queue lengths, health of all parts, today's tokens and cost",
        response_model=StatusOut,
        **needs("read"),
    )
    async def get_status() -> Response:
        most = chats.application.settings.media.max_mb * 2**20
        return json_response(await status_of(chats.application) | {"max_file_bytes": most})

    return router
