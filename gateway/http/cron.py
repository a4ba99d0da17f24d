"""``/v1/cron``: the jobs of the clock, to look at, add, remove, and run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from starlette.responses import Response

import durable
from channels.cron.jobs import CHANNEL, BadJob, coming, new_row, runs, shown
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import BadSchedule, asked, slot_name
from channels.cron.scheduler import run_now
from gateway.app.wiring_cron import Texts
from gateway.config.agents import agents_of, no_agent
from gateway.config.settings import Settings
from gateway.dispatch.routing import AgentChoice
from gateway.http.errors import HttpError, json_response
from gateway.http.messages import Accepted
from gateway.http.openapi import PER_PAGE, Body, Cursor, Limit, Open, Shape, needs
from gateway.service.chats import ChatService
from gateway.service.pages import Place, digest, page
from gateway.service.zones import zone_for

T = TypeVar("T")


class JobIn(Body):
    """A job with one of ``every``, ``cron``, ``at`` (``cron`` and ``at`` accept ``tz``) and ``heartbeat``.

    Answers go to the chat ``to``; it runs in the ``session`` of that chat or in its own. A heartbeat needs no
    ``message``. ``agent`` must be one that the chat may choose; the default is the current agent of the chat.
    """

    every: str | None = None
    cron: str | None = None
    tz: str | None = None
    at: str | None = None
    heartbeat: str | None = None
    message: str = ""
    to: str = ""
    session: Literal["job", "chat"] = "job"
    name: str = ""
    agent: str = ""
    missed: Literal["skip", "once", "all"] = "once"


class SwitchIn(Body):
    """Whether the job is enabled."""

    enabled: bool


class JobOut(Open):
    """A job as ``cron/jobs.json`` has it, and when it runs next; one that cannot run says why."""

    id: Any = None
    next_run_at: str | None = None


class JobsOut(Shape):
    """The jobs, next run first; ``next`` is the cursor of the next page."""

    jobs: list[JobOut]
    next: str | None


class RunsOut(Shape):
    """The next runs of a job, soonest first, and its past runs, latest first."""

    next: list[str]
    past: list[dict[str, Any]]


class RemovedOut(Shape):
    """The deleted job."""

    id: str


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of cron jobs."""
    settings = chats.application.settings

    def file() -> CronFile:
        return CronFile(settings.workspace, zone=settings.zone)

    @router.get("/v1/cron", summary="List the jobs, next run first", **needs("read", JobsOut))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        rows = (await asyncio.to_thread(file().read)).rows(durable.now())
        found, following = page(rows, _place, limit=limit, cursor=cursor)
        return json_response({"jobs": found, "next": following})

    @router.post("/v1/cron", status_code=201, summary="Add a job", **needs("write", JobOut, 409))
    async def post(body: JobIn) -> Response:
        now = durable.now()
        _check_agent(settings, body)
        zone = await zone_for(settings, body.to, body.agent)
        wanted = {"every": body.every, "expr": body.cron, "tz": body.tz, "at": body.at}
        try:
            schedule = asked(**wanted, heartbeat=body.heartbeat, zone=zone, now=now)
            row = new_row(
                schedule,
                body.message,
                at=now,
                to=body.to,
                name=body.name,
                policy=body.missed,
                in_chat=body.session == "chat",
                heartbeat=body.heartbeat is not None,
                agent=body.agent,
            )
        except (BadSchedule, BadJob) as error:
            raise HttpError(400, str(error), hint=error.hint) from None
        job = await asyncio.to_thread(file().add, row)
        return json_response(shown(job, now), 201)

    _add_to_one(router, chats, file)


def _add_to_one(router: APIRouter, chats: ChatService, file: Callable[[], CronFile]) -> None:
    @router.get(
        "/v1/cron/{job_id:path}/runs",
        summary="Show the next and past runs of a job",
        **needs("read", RunsOut, 404, 409),
    )
    async def get_runs(
        job_id: str,
        limit: Annotated[int, Query(ge=1, le=100, description="maximum number of next and of past runs")] = 5,
    ) -> Response:
        job = await asyncio.to_thread(file().job, job_id)
        following, past = coming(job, durable.now(), limit), runs(job)
        return json_response({"next": [slot_name(slot) for slot in following], "past": past[-limit:][::-1]})

    @router.patch(
        "/v1/cron/{job_id:path}", summary="Enable or disable a job", **needs("write", JobOut, 404, 409)
    )
    async def patch(job_id: str, body: SwitchIn) -> Response:
        job = await asyncio.to_thread(file().enable, job_id, body.enabled)
        return json_response(shown(job, durable.now()))

    @router.delete(
        "/v1/cron/{job_id:path}",
        summary="Delete a job; its session is kept",
        **needs("write", RemovedOut, 404, 409),
    )
    async def delete(job_id: str) -> Response:
        await asyncio.to_thread(file().remove, job_id)
        return json_response({"id": job_id})

    @router.post(
        "/v1/cron/{job_id:path}/run",
        status_code=202,
        summary="Run a job now; its schedule stays the same",
        **needs("write", Accepted, 404, 409),
    )
    async def post_run(job_id: str) -> Response:
        texts = Texts(chats.application.settings)
        return json_response(await run_now(file(), job_id, chats.application.intake.accept, texts), 202)


def _check_agent(settings: Settings, body: JobIn) -> None:
    """Refuse an agent that is not configured (400), or that the chat may not choose (403)."""
    if unknown := no_agent(settings, body.agent):
        raise HttpError(400, unknown, hint="leave it out, or use one listed by GET /v1/models")
    choice = AgentChoice(tuple(settings.agents), agents_of(settings))
    if body.agent and (refusal := choice.refusal(body.to or f"{CHANNEL}:", body.agent)):
        raise HttpError(403, refusal, hint="chat-gateway cron add --agent accepts any agent")


def _place(row: Mapping[str, Any]) -> Place:
    """Return where a job stands: those without a next run last, each as old as it is."""
    made = row.get("createdAtMs")
    return row.get("next_run_at") or "~", made if isinstance(made, int) else 0, digest(sorted(row.items()))
