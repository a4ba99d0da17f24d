"""Messages of jobs: which agent runs them, and what their chats are told.

A chat's conversation has the agent that the chat has. So the run of a job that works in the chat's own
conversation is handed on where that is another one: its message goes, under the same id, into the lane of the
job's own conversation, whose answers the chat reads. That is noted first, so that a repeat takes the same way
whatever the chat chose meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

import durable
from channels import storage
from channels.cron.jobs import ABOUT, ALL, CHANNEL, letter_slot
from channels.errors import ChannelError
from channels.message import Inbound, now_text
from gateway.dispatch import messages, replies
from gateway.dispatch.lanes import Lane
from gateway.dispatch.policy import Verdict
from gateway.queue.mailbox import INBOUND, Post
from session.store.store import Session
from session.transcript.agent import named
from session.turn.turn import Reply

log = structlog.get_logger("jobs")

# In the journal of the chat: where its run went.
HANDED_ON = "handed_on"
NO_AGENT = "no_agent"
GONE_SAID = (
    "It belongs to the agent {}, which no longer exists. This run was skipped. The operator can see why."
)
NO_AGENT_CAUSE = "the job {job} belongs to the agent {agent}, which is not configured"
NO_AGENT_CURE = "add [agents.{agent}] again, restart, then parked retry; or cron remove {job}"


@dataclass(frozen=True, slots=True)
class HandedOn:
    """A message for another lane, in which it has the same id."""

    letter: Inbound

    @property
    def post(self) -> Post:
        """The message as it is put."""
        return Post(INBOUND, self.letter.key, self.letter.id, self.letter.to_bytes())


def agent_of(inbound: Inbound) -> str | None:
    """Return whose job asks, empty for the default agent's; None: nobody's in particular, or no job."""
    if inbound.source != "cron" or not inbound.cron_job_id or inbound.kind == "result":
        return None
    return named(inbound.job_agent) if inbound.job_agent else None


def gone(inbound: Inbound) -> Verdict:
    """Say why the run of a job is set aside whose agent is not configured."""
    names = {"job": inbound.cron_job_id, "agent": inbound.job_agent}
    said = GONE_SAID.format(inbound.job_agent)
    return Verdict(NO_AGENT, said, f"{NO_AGENT_CAUSE.format(**names)}; {NO_AGENT_CURE.format(**names)}")


def is_own(inbound: Inbound) -> bool:
    """Say whether a job runs in its own conversation."""
    return inbound.key == _own_key(inbound)


async def hand_on(session: Session, inbound: Inbound) -> HandedOn:
    """Note that a run goes to the job's own conversation, and return its message there.

    Raises:
        Fenced, StoreError: call it again.
    """
    await session.journal.conclude(inbound.id, "silent", reason=HANDED_ON, to=_own_key(inbound))
    return HandedOn(_own_letter(inbound))


def handed_on(session: Session, inbound: Inbound) -> HandedOn | None:
    """Return the message of a run that was handed on before; None: it was not."""
    if agent_of(inbound) is None or is_own(inbound):
        return None
    known = session.journal.known(inbound.id)
    return HandedOn(_own_letter(inbound)) if known is not None and known.reason == HANDED_ON else None


def _own_letter(inbound: Inbound) -> Inbound:
    chat = inbound.answer_to or inbound.key
    place = {"key": _own_key(inbound), "channel": CHANNEL, "chat_id": inbound.cron_job_id}
    return inbound.model_copy(update={**place, "answer_to": chat})


def _own_key(inbound: Inbound) -> str:
    return f"{CHANNEL}:{inbound.cron_job_id}"


FAILED_SAID: Final = "The job “{}” failed: {} Further failures are not reported until it succeeds again."
# Of the jobs that failed longest ago it is forgotten that they did: their next failure is told again.
MAX_FAILED: Final = 1_000


class Jobs:
    """Tells a job's chat of the first failure in a row, which stands in ``state/failed_jobs.json``.

    It is written before the chat is told, with the id of the letter: what dies in between tells the same
    notice again. It is taken out before the message of a run that succeeded is gone.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._path = state / "failed_jobs.json"
        self._lock = state / "failed_jobs.lock"
        self._clock = clock

    async def settled(self, inbound: Inbound, reply: Reply) -> Reply:
        """Return what is sent of what a message ended in; what no job asked stays as it is."""
        if not is_job(inbound):
            return reply
        if reply.kind == "notice" and not reply.silent:
            said = await self.said(inbound, reply.text)
            return replace(reply, silent=True) if said is None else replace(reply, text=said)
        if not reply.silent or messages.is_quiet(reply):
            await asyncio.to_thread(self._succeeded, inbound)
        return reply

    async def said(self, inbound: Inbound, text: str) -> str | None:
        """Return what a chat is told of a run that came to nothing; None: it knows of this job already."""
        if not is_job(inbound):
            return text
        if not await asyncio.to_thread(self._is_first, inbound):
            return None
        return FAILED_SAID.format(messages.job_name(inbound), text)

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
