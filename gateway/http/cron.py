"""``/v1/cron``: the jobs of the clock, to look at, add, remove, and run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from channels.cron.by_hand import run_now
from channels.cron.job import BadJob, new_row, shown
from channels.cron.jobs_file import CronFile, NoJob
from channels.cron.schedule import BadSchedule, asked
from channels.errors import ChannelError
from gateway.app.heartbeat import Texts
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.service.chats import ChatService
from gateway.service.zones import zone_for

T = TypeVar("T")


class JobIn(BaseModel):
    """A job: one of ``every``, ``cron``, ``at`` (the last two perhaps with ``tz``) and ``heartbeat``.

    Answers go ``to`` a chat, in whose ``session`` it runs, or in its own. A heartbeat needs no ``message``.
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
    missed: Literal["skip", "once", "all"] = "once"


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of cron jobs."""
    router = APIRouter(prefix="/v1/cron")
    settings = chats.application.settings

    def file() -> CronFile:
        return CronFile(settings.workspace, zone=settings.zone)

    @router.get("", summary="List the jobs, those that run next first")
    async def get_all() -> Response:
        contents = await _done(asyncio.to_thread(file().read))
        return json_response({"jobs": contents.rows(datetime.now(UTC))})

    @router.post("", status_code=201, summary="Add a job")
    async def post(body: JobIn) -> Response:
        now = datetime.now(UTC)
        zone = await zone_for(settings, body.to)
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
            )
        except (BadSchedule, BadJob) as error:
            raise HttpError(400, str(error), hint=error.hint) from None
        job = await _done(asyncio.to_thread(file().add, row))
        return json_response(shown(job, now), 201)

    @router.delete("/{job_id:path}", summary="Remove a job; its conversation stays")
    async def delete(job_id: str) -> Response:
        await _done(asyncio.to_thread(file().remove, job_id))
        return json_response({"id": job_id})

    @router.post("/{job_id:path}/run", status_code=202, summary="Run a job now, beside its schedule")
    async def post_run(job_id: str) -> Response:
        return json_response(
            await _done(run_now(file(), job_id, chats.application.intake.accept, Texts(settings))), 202
        )

    return router


async def _done(work: Awaitable[T]) -> T:
    try:
        return await work
    except NoJob as error:
        raise HttpError(404, str(error), hint="GET /v1/cron lists them") from None
    except (BadJob, BadSchedule) as error:
        raise HttpError(409, str(error), hint=error.hint) from None
    except ChannelError as error:
        raise unavailable(str(error), error.hint or "try again") from None
