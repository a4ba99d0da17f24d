"""``/v1/cron``: the jobs of the clock, to look at, add, remove, and run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

import durable
from channels.cron.jobs import CHANNEL, BadJob, coming, new_row, runs, shown
from channels.cron.jobs_file import CronFile, NoJob
from channels.cron.schedule import BadSchedule, asked, slot_name
from channels.cron.scheduler import run_now
from channels.errors import ChannelError
from gateway.app.wiring_cron import Texts
from gateway.config.agents import agents_of, no_agent
from gateway.config.settings import Settings
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.messages import Accepted
from gateway.http.paging import PER_PAGE, Cursor, Limit, paged
from gateway.http.shape import Open, Shape, needs
from gateway.service.chats import ChatService
from gateway.service.pages import Place, digest
from gateway.service.zones import zone_for
from gateway.turns.agent_choice import AgentChoice

T = TypeVar("T")


class JobIn(BaseModel):
    """A job with one of ``every``, ``cron``, ``at`` (``cron`` and ``at`` accept ``tz``) and ``heartbeat``.

    Answers go to the chat ``to``; it runs in the ``session`` of that chat or in its own. A heartbeat needs no
    ``message``. ``agent`` must be one that the chat may choose; the default is the current agent of the chat.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

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


class SwitchIn(BaseModel):
    """Whether the job is enabled."""

    model_config = ConfigDict(extra="forbid", strict=True)

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


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of cron jobs."""
    router = APIRouter(prefix="/v1/cron")
    settings = chats.application.settings

    def file() -> CronFile:
        return CronFile(settings.workspace, zone=settings.zone)

    @router.get("", summary="List the jobs, next run first", response_model=JobsOut, **needs("read"))
    async def get_all(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Response:
        rows = (await _done(asyncio.to_thread(file().read))).rows(durable.now())
        found, following = paged(rows, _place, limit=limit, cursor=cursor)
        return json_response({"jobs": found, "next": following})

    @router.post("", status_code=201, summary="Add a job", response_model=JobOut, **needs("write", 409))
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
        job = await _done(asyncio.to_thread(file().add, row))
        return json_response(shown(job, now), 201)

    _add_to_one(router, chats, file)
    return router


def _add_to_one(router: APIRouter, chats: ChatService, file: Callable[[], CronFile]) -> None:
    @router.get(
        "/{job_id:path}/runs",
        summary="Show the next and past runs of a job",
        response_model=RunsOut,
        **needs("read", 404, 409),
    )
    async def get_runs(
        job_id: str,
        limit: Annotated[int, Query(ge=1, le=100, description="maximum number of next and of past runs")] = 5,
    ) -> Response:
        job = await _done(asyncio.to_thread(file().job, job_id))
        following, past = coming(job, durable.now(), limit), runs(job)
        return json_response({"next": [slot_name(slot) for slot in following], "past": past[-limit:][::-1]})

    @router.patch(
        "/{job_id:path}",
        summary="Enable or disable a job",
        response_model=JobOut,
        **needs("write", 404, 409),
    )
    async def patch(job_id: str, body: SwitchIn) -> Response:
        job = await _done(asyncio.to_thread(file().enable, job_id, body.enabled))
        return json_response(shown(job, durable.now()))

    @router.delete(
        "/{job_id:path}",
        summary="Delete a job; its session is kept",
        response_model=RemovedOut,
        **needs("write", 404, 409),
    )
    async def delete(job_id: str) -> Response:
        await _done(asyncio.to_thread(file().remove, job_id))
        return json_response({"id": job_id})

    @router.post(
        "/{job_id:path}/run",
        status_code=202,
        summary="Run a job now; its schedule stays the same",
        response_model=Accepted,
        **needs("write", 404, 409),
    )
    async def post_run(job_id: str) -> Response:
        texts = Texts(chats.application.settings)
        return json_response(
            await _done(run_now(file(), job_id, chats.application.intake.accept, texts)), 202
        )


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


async def _done(work: Awaitable[T]) -> T:
    try:
        return await work
    except NoJob as error:
        raise HttpError(404, str(error), hint="GET /v1/cron lists them") from None
    except (BadJob, BadSchedule) as error:
        raise HttpError(409, str(error), hint=error.hint) from None
    except ChannelError as error:
        raise unavailable(str(error), error.hint or "try again") from None
