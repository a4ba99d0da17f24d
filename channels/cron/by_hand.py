"""Runs a job when a person says so, beside its schedule."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from ulid import ULID

from channels.cron.heartbeat import NOTHING, TextOf, message_of
from channels.cron.job import BadJob, Ran, letter
from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from channels.message import Inbound

Put = Callable[[Inbound], Awaitable[None]]


async def run_now(file: CronFile, job_id: str, put: Put, text_of: TextOf = message_of) -> dict[str, str]:
    """Put the letter of a job at once, beside its schedule, and note it.

    Returns:
        ``id`` and ``key`` of the letter, which is durable.

    Raises:
        NoJob, BadJob: there is none of this id that can run, or it asks nothing now; and whatever ``put``
            and ``text_of`` raise.
    """
    job = await asyncio.to_thread(file.job, job_id)
    if not job.asks:
        raise BadJob(f"the job {job_id} is nanobot's own", hint="it has no message to ask")
    text = await text_of(job)
    if text is None:
        raise BadJob(NOTHING, hint="write a task into it")
    at, began = datetime.now(UTC), time.monotonic()
    inbound = letter(job, None, at=at, run_id=str(ULID()), text=text)
    await put(inbound)
    took_ms = round((time.monotonic() - began) * 1000)
    # The job runs all the same; a damaged file or a full disk is told elsewhere.
    with contextlib.suppress(ChannelError):
        await asyncio.to_thread(file.note, [Ran(job_id, None, "ok", at, None, took_ms)])
    return {"id": inbound.id, "key": inbound.key}
