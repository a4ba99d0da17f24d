"""The agent that a job is of: its runs are that one's, whoever answers in its chat by now.

A chat's conversation has the agent that the chat has. So the run of a job that works in the chat's own
conversation is handed on where that is another one: its letter goes, under the same id, into the lane of the
job's own conversation, whose answers the chat reads. That is noted first, so that a repeat takes the same way
whatever the chat chose meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from channels.cron.jobs import CHANNEL
from channels.message import Inbound
from gateway.queue.mailbox import INBOUND, Post
from gateway.turns.policy import Verdict
from session.store.store import Session
from session.transcript.agent import named

# In the journal of the chat: where its run went.
REASON = "handed_on"
NO_AGENT = "no_agent"
GONE_SAID = (
    "It belongs to the agent {}, which no longer exists. This run was skipped. The operator can see why."
)
GONE = "the job {job} belongs to the agent {agent}, which is not configured"
CURE = "add [agents.{agent}] again, restart, then parked retry; or cron remove {job}"


@dataclass(frozen=True, slots=True)
class HandedOn:
    """A letter for another lane; whoever takes it from there knows its id."""

    letter: Inbound

    @property
    def post(self) -> Post:
        """The letter as it is put."""
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
    return Verdict(NO_AGENT, said, f"{GONE.format(**names)}; {CURE.format(**names)}")


def is_own(inbound: Inbound) -> bool:
    """Say whether a job runs in its own conversation."""
    return inbound.key == _own_key(inbound)


async def hand_on(session: Session, inbound: Inbound) -> HandedOn:
    """Note that a run goes to the job's own conversation, and return its letter there.

    Raises:
        Fenced, StoreError: call it again.
    """
    await session.journal.conclude(inbound.id, "silent", reason=REASON, to=_own_key(inbound))
    return HandedOn(_own_letter(inbound))


def handed_on(session: Session, inbound: Inbound) -> HandedOn | None:
    """Return the letter of a run that was handed on before; None: it was not."""
    if agent_of(inbound) is None or is_own(inbound):
        return None
    known = session.journal.known(inbound.id)
    return HandedOn(_own_letter(inbound)) if known is not None and known.reason == REASON else None


def _own_letter(inbound: Inbound) -> Inbound:
    chat = inbound.answer_to or inbound.key
    place = {"key": _own_key(inbound), "channel": CHANNEL, "chat_id": inbound.cron_job_id}
    return inbound.model_copy(update={**place, "answer_to": chat})


def _own_key(inbound: Inbound) -> str:
    return f"{CHANNEL}:{inbound.cron_job_id}"
