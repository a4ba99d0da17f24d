"""The way of one message at the head of its lane: nine steps in order; the first that decides ends it.

    deduplicate   its outcome is stored: it is sent again, and no model is asked
    command       an edit or a deletion is done; a command that waited is recognised
    route         a moved chat, a subagent's result, the agent that answers
    batch         waits for further messages that the same turn will answer
    admit         the limits of its person, its chat and the day
    guard         counts crashes, lets a suspect run alone, gives a poison message up
    roll over     a chat that was silent for long begins a new session
    run           the command, or the turn
    complete      what the steps decided is made durable, and the delivery is acknowledged

Before that, when a message arrives, it is decoded, held to the flood limit and put into its lane, and a
command that acts out of line does so (``arrivals.py``). No step knows another: they share the
``MessageContext``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gateway.turns import chat_migration, edits, job_agents, outcomes
from gateway.turns.agents import ChatAgents, Refused
from gateway.turns.attempts import Attempts
from gateway.turns.collect import Collecting
from gateway.turns.context import Ending, MessageContext, Step
from gateway.turns.job_agents import HandedOn
from gateway.turns.jobs import Jobs, is_job
from gateway.turns.lanes import RetryAfter
from gateway.turns.orders import Orders
from gateway.turns.parking import Parking
from gateway.turns.policy import ATTEMPTS_SAID, Verdict
from gateway.turns.quota import Quota
from gateway.turns.settlement import SOON_S, Settlement
from gateway.turns.spawning import is_of_subagent
from gateway.turns.subagents import Subagents
from session.memory.scope_resolver import remember_chat_kind
from session.store.store import Session, Store
from session.transcript.attachments import Attachment
from session.turn import commands
from session.turn.turn import Reply, Request

Enclosures = Callable[[Session, Request, str], Awaitable[Sequence[Attachment]]]


class Pipeline:
    """Runs the steps over a message, then completes what they decided.

    Args:
        steps: in their order; the last one decides in any case.
        complete: makes durable what they decided.
    """

    def __init__(self, steps: Sequence[Step], complete: Complete) -> None:
        self._steps = steps
        self._complete = complete

    async def run(self, message: MessageContext) -> RetryAfter | None:
        """Do one try; None when the message has ended."""
        with message.leave:
            ending = await self._ending(message)
        return await self._complete.end(message, ending)

    async def _ending(self, message: MessageContext) -> Ending:
        for step in self._steps:
            if (ending := await step.take(message)) is not None:
                return ending
        raise AssertionError("the last step decides")


class Deduplicate:
    """Finds what a message ended in before: it was handed on, answered out of line, or has an outcome."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the stored ending."""
        inbound, session = message.inbound, message.session
        if inbound.kind == "edit":
            # An edit recognises what it did to its message.
            return None
        if (handed_on := job_agents.handed_on(session, inbound)) is not None:
            return handed_on
        message.command = outcomes.command(inbound)
        # Asked first: what was answered out of line is stored, too, and would be sent a second time.
        if await self._orders.answered(inbound, message.command):
            return Reply(silent=True)
        return outcomes.stored(session, inbound)


class Command:
    """Does edits and deletions; a deleted message that others wait for is asked again without its words."""

    def __init__(self, collecting: Collecting, *, now: Callable[[], str]) -> None:
        self._collecting = collecting
        self._now = now

    async def take(self, message: MessageContext) -> Ending | None:
        """Return how an edit or a deleted message ends."""
        entry, session = message.entry, message.session
        if message.inbound.kind == "edit":
            return await edits.settle(session, message.inbound, at=self._now())
        if entry.deleted and self._collecting.stands_in(entry, session):
            entry.inbound, message.command = edits.emptied(message.inbound), commands.Command("retry")
            return None
        return await edits.overtaken(session, entry, at=self._now())


class Route:
    """Finds the conversation and the agent that a message is for."""

    def __init__(self, store: Store, agents: ChatAgents, subagents: Subagents | None) -> None:
        self._store = store
        self._agents = agents
        self._subagents = subagents

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the end of what is for nobody here, or goes elsewhere."""
        entry, session, inbound = message.entry, message.session, message.inbound
        if (moved_to := chat_migration.target(inbound)) is not None:
            return await chat_migration.settle(self._store, session, inbound, moved_to)
        if inbound.kind == "result" and self._subagents is not None:
            met = await self._subagents.met(session, inbound)
            if met is not None:
                return met
        agent = await self._agents.before(entry, session)
        if isinstance(agent, Refused):
            return await outcomes.answer_command(session, inbound, agent.text)
        if isinstance(agent, HandedOn | Verdict):
            return agent
        message.answers = agent
        return None


class Batch:
    """Has a message wait for those that its turn will answer, too."""

    def __init__(self, collecting: Collecting) -> None:
        self._collecting = collecting

    async def take(self, message: MessageContext) -> Ending | None:
        """Return for how long."""
        return self._collecting.pause(message.entry, message.session)


class Admit:
    """Holds a message to the limits of its person, its chat and the day.

    It comes behind ``batch``: a message counts for its person from here to its end, or two might pass the
    limit at once.
    """

    def __init__(self, quota: Quota | None, collecting: Collecting, subagents: Subagents | None) -> None:
        self._quota = quota
        self._collecting = collecting
        self._subagents = subagents

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the refusal."""
        entry, session, inbound = message.entry, message.session, message.inbound
        # Whatever it ends in: what its platform says of the chat decides what later messages may see.
        await remember_chat_kind(session, outcomes.chat(inbound))
        quota = self._quota
        if quota is None or not outcomes.asks_model(message.command):
            return None
        # For a subagent's turn, and its result's, whoever asked for it pays.
        payer = quota.payer(self._subagents.payer(inbound) if self._subagents is not None else inbound)
        message.payer = payer
        if not quota.limits:
            return None
        if not entry.admitted and session.find(inbound.id) is None:
            # The message for which a subagent works was counted before, and was within the limit.
            turns = inbound.kind != "result" and not is_of_subagent(inbound)
            # It was counted with the message whose turn was stopped for it.
            serves = turns and self._collecting.serves_stopped(inbound, session)
            if (refusal := await quota.refusal(session, payer, turns=turns and not serves)) is not None:
                return refusal
            entry.last = serves and await quota.is_reached(payer)
        entry.admitted = True
        message.leave.enter_context(quota.running(payer))
        return None


class Guard:
    """Counts the crashes of a message, and gives it the place in which it may run."""

    def __init__(self, attempts: Attempts, collecting: Collecting, *, now: Callable[[], str]) -> None:
        self._attempts = attempts
        self._collecting = collecting
        self._now = now

    async def take(self, message: MessageContext) -> Ending | None:
        """Return why it runs no more, or what it waits for."""
        entry, session = message.entry, message.session
        attempt = message.attempt = self._attempts.at(entry, session)
        if attempt.spent:
            return Verdict("attempts", ATTEMPTS_SAID.format(attempt.begun))
        if attempt.alone and await self._collecting.part(entry, session, self._now()):
            return RetryAfter(SOON_S)
        if attempt.counted and outcomes.calls_model(message.command):
            assert message.answers is not None
            # It takes seconds, and a kill in them is no fault of the message's.
            await message.answers.turns.ready(entry.stop)
        if (wait := attempt.take_place()) is not None:
            return wait
        message.leave.callback(attempt.leave_place)
        return None


class Complete:
    """Makes durable what the steps decided."""

    def __init__(
        self,
        settlement: Settlement,
        parking: Parking,
        *,
        enclosures: Enclosures | None,
        jobs: Jobs | None,
    ) -> None:
        self._settlement = settlement
        self._parking = parking
        self._enclosures = enclosures
        self._jobs = jobs

    async def end(self, message: MessageContext, ending: Ending) -> RetryAfter | None:
        """Send, park or hand on the message; None when it has ended.

        Raises:
            LetterLost: it has ended, and comes again all the same.
            MailboxError, SessionError: call it again.
        """
        entry, session, inbound = message.entry, message.session, message.inbound
        match ending:
            case RetryAfter():
                return ending
            case Verdict():
                await self._parking.park(entry, session, ending)
                return None
            case HandedOn():
                return await self._settlement.hand_on(entry, ending)
            case Reply() as reply:
                if self._enclosures is not None and outcomes.may_enclose(inbound, reply):
                    files = await self._enclosures(session, outcomes.request(inbound), reply.text)
                    reply = outcomes.with_files(reply, files)
                if self._jobs is not None and is_job(inbound):
                    reply = await self._jobs.settled(inbound, reply)
                return await self._settlement.send(entry, reply, behind=session.ahead)
