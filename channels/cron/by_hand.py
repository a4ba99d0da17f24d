"""Runs a job when a person says so, beside its schedule."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import durable
from channels.cron.heartbeat import NOTHING, TextOf, message_of
from channels.cron.job import BadJob, Ran, letter
from channels.cron.jobs_file import CronFile
from channels.errors import ChannelError
from channels.message import Inbound

Put = Callable[[Inbound], Awaitable[None]]


async def run_now(file: CronFile, job_id: str, put: Put, text_of: TextOf = message_of) -> dict[str, str]:
    """Note a run of a job, and put its letter at once, beside its schedule.

    Returns:
        ``id`` and ``key`` of the letter, which is durable.

    Raises:
        NoJob, BadJob: there is none of this id that can run, or it asks nothing now; and whatever ``put``
            and ``text_of`` raise.
    """
    job = await asyncio.to_thread(file.job, job_id)
    if not job.asks:
        raise BadJob(f"the job {job_id} has no message", hint="only nanobot itself can run it")
    text = await text_of(job)
    if text is None:
        raise BadJob(NOTHING, hint="write a task in it")
    at = durable.now()
    inbound = letter(job, None, at=at, run_id=durable.new_id(), text=text)
    # Noted first: a turn that fails at once is noted after it. The job runs all the same; a damaged file or a
    # full disk is told elsewhere.
    with contextlib.suppress(ChannelError):
        await asyncio.to_thread(file.note, [Ran(job_id, None, "ok", at)])
    try:
        await put(inbound)
    except Exception as error:
        with contextlib.suppress(ChannelError):
            await asyncio.to_thread(file.failed, job_id, None, f"{type(error).__name__}: {error}")
        raise
    return {"id": inbound.id, "key": inbound.key}
