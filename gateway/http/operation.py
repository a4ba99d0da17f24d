"""Health, metrics, status, lanes, trace, usage, configuration and ``doctor``: routes for the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from itertools import chain
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ConfigDict, Field
from starlette.responses import PlainTextResponse, Response

import durable
from gateway.app.status import readiness_of, status_of
from gateway.config.redact import shown_settings
from gateway.http.errors import json_response
from gateway.http.openapi import ErrorOut, Metrics, Open, Shape, needs
from gateway.http.security import Gate
from gateway.service.chat_list import ChatList
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.service.gauges import metrics
from gateway.service.trace import NotTraced, Tracer, joined
from session.models.usage_rows import KEPT_DAYS, report
from session.store.state import StoreState


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
    """What waits in a box, as it was counted ``age_s`` seconds ago."""

    count: int
    oldest_at: str | None
    age_s: float


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


def add_health_routes(router: APIRouter, chats: ChatService, gate: Gate) -> None:
    """Add the routes that a process without clients serves, too: health and metrics."""

    # Uptime monitors ask with HEAD.
    @router.head("/healthz", include_in_schema=False, **needs(None))
    @router.get("/healthz", summary="Liveness: the process answers", **needs(None, AliveOut))
    async def get_healthz() -> Response:
        return json_response({"alive": True})

    @router.head("/readyz", include_in_schema=False, **needs(None))
    @router.get(
        "/readyz",
        summary="Readiness: queue, dispatcher and HTTP are up, otherwise 503; with a token also the reason",
        **needs(None, ReadyOut, _503=ReadyOut | ErrorOut),
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
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
        **needs("read"),
    )
    async def get_metrics() -> Response:
        return Response(await metrics(chats.application), media_type=CONTENT_TYPE_LATEST)


LANES_WITHIN_S: Final = 1.0


class LanesOut(Shape):
    """Chats with unanswered messages; ``silent`` are the process ids of workers that did not answer."""

    lanes: list[LaneOut]
    silent: list[int]


def _add_status(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/status",
        summary="Show chats in progress, queue lengths, health of all parts, today's tokens and cost",
        **needs("read", StatusOut),
    )
    async def get_status() -> Response:
        most = chats.application.settings.media.max_mb * 2**20
        return json_response(await status_of(chats.application) | {"max_file_bytes": most})

    @router.get(
        "/v1/lanes",
        summary="List running and waiting messages by chat, in all processes",
        **needs("read", LanesOut),
    )
    async def get_lanes() -> Response:
        return json_response(await lanes_of_all(chats))


async def lanes_of_all(chats: ChatService) -> dict[str, Any]:
    """Return the ``lanes`` of this gateway, and which of its workers were ``silent``."""
    workers = chats.application.workers
    if workers is None:
        return {"lanes": ChatList(chats).lanes(), "silent": []}
    found = await workers.ask_by_number("lanes", within_s=LANES_WITHIN_S)
    return {"lanes": list(chain(*found.values())), "silent": sorted(workers.silent(found))}


# What goes out for a message has a longer id than the message.
MAX_ID_CHARS = 512

Key = Annotated[str | None, Query(max_length=MAX_KEY_CHARS, description="key of the message's chat")]
Id = Annotated[str, Path(min_length=1, max_length=MAX_ID_CHARS, description="from the log or the transcript")]
Days = Annotated[int, Query(ge=1, le=KEPT_DAYS, description="number of days, including today (UTC)")]


class StepOut(Open):
    """One step, with the figures and names that belong to it; ``at`` is null where nothing on disk tells."""

    at: str | None
    step: str
    words: str
    source: str


class TraceOut(Shape):
    """What happened to a message: its state, its steps, and what is unknown."""

    id: str
    key: str | None
    state: str
    words: str
    steps: list[StepOut]
    unknown: list[str]


class SumsOut(Metrics):
    """What turns and other calls used."""

    calls: int


class DayUsageOut(SumsOut):
    """Usage of a day (UTC)."""

    day: str


class ChatUsageOut(SumsOut):
    """Usage of a chat."""

    key: str | None


class PersonUsageOut(SumsOut):
    """Usage of a person."""

    person: str | None


class ModelUsageOut(SumsOut):
    """Usage of a model; null for entries without a model."""

    model: str | None


class UsageReportOut(Shape):
    """Days, oldest first; all others, most expensive first."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    first: str = Field(alias="from")
    to: str
    total: SumsOut
    days: list[DayUsageOut]
    chats: list[ChatUsageOut]
    people: list[PersonUsageOut]
    models: list[ModelUsageOut]


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of status, lanes, trace, usage, configuration and doctor."""
    _add_trace(router, chats)
    _add_status(router, chats)
    _add_checks(router, chats)


def _add_trace(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/trace/{message_id:path}",
        summary="Show what happened to one message, step by step",
        **needs("read", TraceOut, 404, 409),
    )
    async def get_trace(message_id: Id, key: Key = None) -> Response:
        application = chats.application
        lanes = application.worker.lanes if application.worker is not None else None
        tracer = Tracer(application.settings, mailbox=application.mailbox, lanes=lanes)
        found: list[dict[str, Any]] = []
        fault: NotTraced | None = None
        try:
            found.append(await tracer.trace(message_id, key))
        except NotTraced as error:
            fault = error
        found += [each for each in await application.ask_workers("trace", id=message_id, key=key) if each]
        if not found:
            assert fault is not None
            raise fault
        return json_response(joined(found))

    @router.get(
        "/v1/usage", summary="Tokens and cost by day, chat, person and model", **needs("read", UsageReportOut)
    )
    async def get_usage(days: Days = 30, key: Key = None) -> Response:
        application = chats.application
        async with aclosing(StoreState(application.settings.state)) as state:
            return json_response(await report(state, today=durable.now().date(), days=days, key=key or ""))


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


def _add_checks(router: APIRouter, chats: ChatService) -> None:
    # Each run asks model and broker: whoever asks meanwhile waits for the one before.
    alone = asyncio.Lock()

    @router.get(
        "/v1/config", summary="Show the effective configuration without secrets", **needs("admin", ConfigOut)
    )
    async def get_config() -> Response:
        return json_response(await asyncio.to_thread(shown_settings, chats.application.settings))

    @router.get(
        "/v1/doctor",
        summary="Run all checks of `doctor` within 90 s, with one request to the model",
        **needs("admin", DoctorOut),
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
