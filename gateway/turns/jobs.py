"""What jobs tell their chats: what there is to say, and of failures the first one, until a run succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

import durable
from channels import storage
from channels.cron.jobs import ABOUT, ALL, letter_slot
from channels.errors import ChannelError
from channels.message import Inbound, now_text
from gateway.turns import outcomes, replies
from gateway.turns.lanes import Lane
from session.turn.turn import Reply

log = structlog.get_logger("jobs")

FAILED_SAID: Final = "The job “{}” failed: {} Further failures are not reported until it succeeds again."
# Of the jobs that failed longest ago it is forgotten that they did: their next failure is told again.
MAX_FAILED: Final = 1_000


class Jobs:
    """Tells a job's chat of the first failure in a row, which stands in ``state/failed_jobs.json``.

    It is written before the chat is told, with the id of the letter: what dies in between tells the same
    notice again. It is taken out before the letter of a run that succeeded is gone.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._path = state / "failed_jobs.json"
        self._lock = state / "failed_jobs.lock"
        self._clock = clock

    async def settled(self, inbound: Inbound, reply: Reply) -> Reply:
        """Return what is sent of what a letter ended in; what no job asked stays as it is."""
        if not is_job(inbound):
            return reply
        if reply.kind == "notice" and not reply.silent:
            said = await self.said(inbound, reply.text)
            return replace(reply, silent=True) if said is None else replace(reply, text=said)
        if not reply.silent or outcomes.is_quiet(reply):
            await asyncio.to_thread(self._succeeded, inbound)
        return reply

    async def said(self, inbound: Inbound, text: str) -> str | None:
        """Return what a chat is told of a letter that came to nothing; None: it knows of this job already."""
        if not is_job(inbound):
            return text
        if not await asyncio.to_thread(self._is_first, inbound):
            return None
        return FAILED_SAID.format(outcomes.job_name(inbound), text)

    def _is_first(self, inbound: Inbound) -> bool:
        """Note a failure; say whether it is the first one in a row."""
        job_id = str(inbound.cron_job_id)
        try:
            with storage.locked(self._lock):
                failed = self._read()
                known = failed.get(job_id)
                if isinstance(known, dict):
                    return bool(known.get("letter") == inbound.id)
                kept = list(failed.items())[-(MAX_FAILED - 1) :]
                entry = {"letter": inbound.id, "at": now_text(self._clock())}
                storage.write(self._path, {"jobs": {**dict(kept), job_id: entry}})
        except ChannelError as error:
            # Told twice is better than never.
            log.warning("failure.unnoted", job=job_id, error=str(error), hint=error.hint)
        return True

    def _succeeded(self, inbound: Inbound) -> None:
        job_id = str(inbound.cron_job_id)
        try:
            if job_id not in self._read():
                return
            with storage.locked(self._lock):
                failed = self._read()
                if failed.pop(job_id, None) is not None:
                    storage.write(self._path, {"jobs": failed})
        except ChannelError as error:
            log.warning("success.unnoted", job=job_id, error=str(error), hint=error.hint)

    def _read(self) -> dict[str, Any]:
        jobs = storage.read(self._path).get("jobs")
        return jobs if isinstance(jobs, dict) else {}


def is_job(inbound: Inbound) -> bool:
    """Say whether the clock asks, and not a person."""
    return inbound.source == "cron" and bool(inbound.cron_job_id)


def replace_waiting(lane: Lane, inbound: Inbound) -> None:
    """Withdraw earlier runs of the same job that still wait unasked; the newest run takes their place.

    A job that wants all of its runs (``missed = all``) keeps them, and a run by hand replaces nothing.
    """
    about, slot = inbound.meta.get(ABOUT), letter_slot(inbound.id)
    if not is_job(inbound) or slot is None or (isinstance(about, dict) and about.get("missed") == ALL):
        return
    for entry in lane.entries:
        other = entry.inbound
        before = letter_slot(other.id) if other.cron_job_id == inbound.cron_job_id else None
        if before is not None and before < slot and not entry.deleted:
            entry.deleted = True
            log.info("run.replaced", job=inbound.cron_job_id, id=other.id, by=inbound.id)


def is_shown(inbound: Inbound) -> bool:
    """Say whether a turn is shown while it runs.

    That of a job is not: its answer may be that nobody is to be told. Where the answer stands in the job's
    own session alone, whoever looks there sees it grow.
    """
    return not is_job(inbound) or replies.target(inbound)[1] == "cron"
