"""The second hand-over: letters come in, turns run, replies are durable before their letters are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from channels.message import Inbound
from gateway.errors import LetterLost, MailboxError
from gateway.observer import Observer
from gateway.queue.mailbox import INBOUND, Mailbox, carried
from gateway.queue.retry import back_off_s
from gateway.turns import chat_migration, edits, job_agents, outcomes
from gateway.turns.agents import AgentSet, Answers, ChatAgents, Refused
from gateway.turns.approvals import Approvals
from gateway.turns.arrivals import Arrivals
from gateway.turns.attempts import Attempts
from gateway.turns.collect import Collecting
from gateway.turns.events import Events
from gateway.turns.flood import Refusals
from gateway.turns.idle import IdleBoundary
from gateway.turns.job_agents import HandedOn
from gateway.turns.jobs import Jobs, is_job
from gateway.turns.lanes import Entry, Lanes, RetryAfter
from gateway.turns.letter_rules import LetterRules
from gateway.turns.notices import Notices
from gateway.turns.orders import Orders
from gateway.turns.outages import Outages
from gateway.turns.parking import Parking
from gateway.turns.policy import ATTEMPTS_SAID, Outage, Verdict
from gateway.turns.quota import Quota
from gateway.turns.running import TurnRuns
from gateway.turns.settlement import SOON_S, LetterEnded, Settlement
from gateway.turns.spawning import is_of_subagent
from gateway.turns.subagents import Subagents
from session.errors import Fenced, NewerFormat, SessionError, StoreError
from session.memory.circles import learn
from session.models.model import Payer
from session.store.store import Session, Store
from session.transcript.attachments import Attachment
from session.transcript.key import SessionKey
from session.turn import commands
from session.turn.turn import Reply, Request

log = structlog.get_logger("worker")

Enclosures = Callable[[Session, Request, str], Awaitable[Sequence[Attachment]]]


class Worker:
    """Takes inbound letters, runs their turns in lanes, and settles each with its reply."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        store: Store,
        agents: AgentSet,
        events: Events,
        rules: LetterRules,
        group: asyncio.TaskGroup,
        quota: Quota | None = None,
        enclosures: Enclosures | None = None,
        jobs: Jobs | None = None,
        turn_ended: Callable[[Session, Reply], None] = lambda session, reply: None,
        letter_ended: LetterEnded = lambda inbound, status, error, duration_ms: None,
        confides: Callable[[Inbound], bool] = lambda inbound: False,
        subagents: Subagents | None = None,
        decides: Callable[[Inbound], bool] = lambda inbound: True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self.lanes = Lanes(self.work, group=group, concurrent=rules.concurrent_turns)
        self.attached = asyncio.Event()
        self._mailbox, self._store, self._events = mailbox, store, events
        self._turns = agents.every[""].turns
        self._rules, self._group = rules, group
        self._quota, self._jobs, self._subagents = quota, jobs, subagents
        self._enclosures = enclosures
        self._draining, self._observer = False, observer
        notices = Notices(mailbox=mailbox, events=events, clock=clock)
        self._attempts = Attempts(rules.attempts)
        end_subagents = subagents.end if subagents is not None else None
        self._agents = ChatAgents(agents, store=store, notices=notices, end_subagents=end_subagents)
        self._settlement = settlement = Settlement(
            mailbox=mailbox,
            events=events,
            notices=notices,
            letter_ended=letter_ended,
            clock=clock,
            subagents=subagents,
            observer=observer,
        )
        self._parking = Parking(
            mailbox=mailbox,
            notices=notices,
            jobs=jobs,
            settlement=settlement,
            now=self._turns.now,
            attempts=rules.attempts,
            fenced_tries=rules.fenced_tries,
        )
        self.orders = self._open_orders(store, clock)
        self._approvals = self.orders.approvals = self._open_approvals(notices, clock, decides)
        self._collecting = Collecting(rules.queue, self.lanes)
        self._arrivals = self._open_arrivals(store, notices, observer)
        self._outages = self._open_outages(notices, clock, confides)
        self.is_away = self._outages.is_away
        self._runs = self._open_runs(turn_ended)
        ended = agents.every[""].commands.ended
        self._idle = IdleBoundary(rules.idle_hours, notices=notices, ended=ended, clock=clock)

    @property
    def outage(self) -> Outage:
        """What is known of a model that is away."""
        return self._outages.outage

    def _open_orders(self, store: Store, clock: Callable[[], datetime]) -> Orders:
        return Orders(
            *(self.lanes, store, self._mailbox, self._agents),
            clock=clock,
            spawn=self._spawn,
            subagents=self._subagents,
        )

    def _open_outages(
        self, notices: Notices, clock: Callable[[], datetime], confides: Callable[[Inbound], bool]
    ) -> Outages:
        return Outages(
            lanes=self.lanes,
            store=self._store,
            notices=notices,
            outage_hours=self._rules.outage_hours,
            model_tries=self._rules.model_tries,
            fenced_tries=self._rules.fenced_tries,
            clock=clock,
            spawn=self._spawn,
            confides=confides,
        )

    def _open_runs(self, turn_ended: Callable[[Session, Reply], None]) -> TurnRuns:
        return TurnRuns(
            events=self._events,
            quota=self._quota,
            outages=self._outages,
            parking=self._parking,
            collecting=self._collecting,
            subagents=self._subagents,
            approvals=self._approvals,
            turn_ended=turn_ended,
            spawn=self._spawn,
        )

    def _open_arrivals(self, store: Store, notices: Notices, observer: Observer) -> Arrivals:
        refusals = Refusals(
            self._rules.flood_per_chat,
            store=store,
            orders=self.orders,
            send=self._settlement.send,
            park=self._parking.park,
            spawn=self._spawn,
        )
        return Arrivals(
            self._rules.pending_per_chat,
            lanes=self.lanes,
            mailbox=self._mailbox,
            events=self._events,
            notices=notices,
            orders=self.orders,
            refusals=refusals,
            collecting=self._collecting,
            agents=self._agents,
            spawn=self._spawn,
            redelivered=observer.redelivered,
        )

    def _open_approvals(
        self, notices: Notices, clock: Callable[[], datetime], decides: Callable[[Inbound], bool]
    ) -> Approvals | None:
        gate, chat_commands = self._turns.gate, self._agents.every[""].commands
        answers = chat_commands.answers
        if gate is None or answers is None:
            return None
        approvals = Approvals(
            gate.files,
            answers,
            lanes=self.lanes,
            mailbox=self._mailbox,
            notices=notices,
            aside=self.orders.aside,
            chat_commands=chat_commands,
            clock=clock,
            spawn=self._spawn,
            decides=decides,
        )
        for each in self._agents.every.values():
            if each.turns.gate is not None:
                each.turns.gate.told = approvals.told
        return approvals

    # -- taking ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take letters until cancelled; what has not ended then goes back to its box."""
        async with self._mailbox.take(INBOUND) as letters:
            self.attached.set()
            async for letter in letters:
                if not self._draining:
                    self._arrivals.receive(letter)

    async def drain(self, within_s: float) -> bool:
        """Start nothing new; return whether all running turns ended within ``within_s`` seconds."""
        self._draining = self._outages.draining = True
        self._arrivals.close()
        if self._approvals is not None:
            self._approvals.close()
        return await self.lanes.drain(within_s)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something beside the lanes; what it raises is logged and ends nothing else."""

        async def guarded() -> None:
            try:
                await work
            except (MailboxError, SessionError) as error:
                log.warning("side_work.failed", work=name, error=str(error), hint=error.hint)
            except Exception:
                # This work ends here: nothing else depends on it.
                log.exception("side_work.crashed", work=name)

        self._group.create_task(guarded(), name=name)

    # -- one try of a letter -----------------------------------------------------------------------

    async def work(self, entry: Entry) -> RetryAfter | None:
        """Do one try of the head of a lane; None when its letter has ended or is no longer ours."""
        inbound = entry.inbound
        bound = structlog.contextvars.bind_contextvars(key=inbound.key, id=inbound.id)
        carries = carried.set(self._observer.working(inbound, entry.letter.headers))
        try:
            return await self._try(entry)
        # A newer version works on these files: this process must end, and not wait for a disk that is sound.
        except NewerFormat:
            raise
        except Fenced as error:
            return self._outages.fenced(entry, error)
        except LetterLost:
            # The outcome is stored, and only the acknowledgement missed the letter: it comes again.
            return self._settlement.lost(entry)
        except (MailboxError, StoreError) as error:
            return await self._outages.delay(entry, error)
        except Exception as error:
            # One letter ends here: what nobody foresaw is tried again, then parked.
            log.exception("turn.crashed")
            return None if self._parking.crashed(entry, error) else RetryAfter(back_off_s(entry.tries.waits))
        finally:
            carried.reset(carries)
            structlog.contextvars.reset_contextvars(**bound)

    async def _try(self, entry: Entry) -> RetryAfter | None:
        inbound = entry.inbound
        entry.begun_at = entry.begun_at or asyncio.get_running_loop().time()
        if await self._settlement.acknowledged_again(entry):
            return None
        if entry.verdict is not None and self._parking.is_shut(entry):
            await self._parking.park(entry, None, entry.verdict)
            return None
        agents = self._subagents if is_of_subagent(inbound) else None
        if agents is not None and await agents.turned_away(entry):
            return None
        store = agents.store if agents is not None else self._store
        async with store.open(SessionKey(inbound.key)) as session:
            if entry.verdict is not None:
                await self._parking.park(entry, session, entry.verdict)
                return None
            if agents is not None:
                await agents.opened(session, entry.inbound)
            reply = await self._outcome(entry, session)
            if isinstance(reply, Reply):
                if self._enclosures is not None and outcomes.may_enclose(inbound, reply):
                    files = await self._enclosures(session, outcomes.request(inbound), reply.text)
                    reply = outcomes.with_files(reply, files)
                if self._jobs is not None and is_job(inbound):
                    reply = await self._jobs.settled(inbound, reply)
                return await self._settlement.send(entry, reply)
            return reply

    async def _outcome(self, entry: Entry, session: Session) -> Reply | RetryAfter | None:
        """Say what the letter ended in: what is stored of it, else what a command or turn makes of it now."""
        inbound = entry.inbound
        if (moved_to := chat_migration.target(inbound)) is not None:
            return await chat_migration.settle(self._store, session, inbound, moved_to)
        if inbound.kind == "edit":
            return await edits.settle(session, inbound, at=self._turns.now())
        if (handed_on := job_agents.handed_on(session, inbound)) is not None:
            return await self._settlement.hand_on(entry, handed_on)
        command = outcomes.command(inbound)
        if await self.orders.answered(inbound, command):
            return Reply(silent=True)
        stored = outcomes.stored(session, inbound)
        if stored is None and entry.deleted and self._collecting.stands_in(entry, session):
            entry.inbound, command = edits.emptied(inbound), commands.Command("retry")
        elif stored is None:
            stored = await edits.overtaken(session, entry, at=self._turns.now())
        if stored is None and inbound.kind == "result" and self._subagents is not None:
            met = await self._subagents.met(session, inbound)
            if isinstance(met, Verdict):
                await self._parking.park(entry, session, met)
                return None
            stored = met
        return stored if stored is not None else await self._answer(entry, session, command)

    async def _answer(
        self, entry: Entry, session: Session, command: commands.Command | None
    ) -> Reply | RetryAfter | None:
        """Run the command or the turn; None when the letter was parked."""
        inbound = entry.inbound
        agent = await self._agents.before(entry, session)
        if isinstance(agent, Refused):
            return await outcomes.answer_command(session, inbound, agent.text)
        if isinstance(agent, HandedOn):
            return await self._settlement.hand_on(entry, agent)
        if isinstance(agent, Verdict):
            await self._parking.park(entry, session, agent)
            return None
        if (pause := self._collecting.pause(entry, session)) is not None:
            return pause
        # Whatever it ends in: what its platform says of the chat decides what later messages may see.
        await learn(session, outcomes.chat(inbound))
        # It counts for its person from the decision on, not from the turn: two might pass the limit at once.
        quota = self._quota if outcomes.asks_model(command) else None
        if quota is None:
            return await self._begin(entry, session, command, agent, None)
        # For a subagent's turn, and its result's, whoever asked for it pays.
        payer = quota.payer(self._subagents.payer(inbound) if self._subagents is not None else inbound)
        if not quota.limits:
            return await self._begin(entry, session, command, agent, payer)
        if not entry.admitted and session.find(inbound.id) is None:
            # The message for which a subagent works was counted before, and was within the limit.
            turns = inbound.kind != "result" and not is_of_subagent(inbound)
            # It was counted with the message whose turn was stopped for it.
            serves = turns and self._collecting.serves_stopped(inbound, session)
            if (refusal := await quota.refusal(session, payer, turns=turns and not serves)) is not None:
                return refusal
            entry.last = serves and quota.is_reached(payer)
        entry.admitted = True
        with quota.running(payer):
            return await self._begin(entry, session, command, agent, payer)

    async def _begin(
        self,
        entry: Entry,
        session: Session,
        command: commands.Command | None,
        agent: Answers,
        payer: Payer | None,
    ) -> Reply | RetryAfter | None:
        """Run the command or the turn where its letter may be tried again; None when it was parked."""
        inbound = entry.inbound
        attempt = self._attempts.at(entry, session)
        if attempt.spent:
            verdict = Verdict("attempts", ATTEMPTS_SAID.format(attempt.begun))
            await self._parking.park(entry, session, verdict)
            return None
        if attempt.alone and await self._collecting.part(entry, session, self._turns.now()):
            return RetryAfter(SOON_S)
        if attempt.counted and outcomes.calls_model(command):
            # It takes seconds, and a kill in them is no fault of the letter's.
            await agent.turns.ready(entry.stop)
        if (wait := attempt.take_place()) is not None:
            return wait
        try:
            if command is not None:
                async with attempt:
                    answer = await self._ordered(entry, session, command, agent)
                if isinstance(answer, str):
                    return await outcomes.answer_command(session, inbound, answer, entry.queued_at)
                return await self._runs.run(attempt, answer, agent, payer)
            await self._idle.before(entry, session)
            begins = not len(session) and not session.metadata.get("previous_session")
            request = outcomes.request(
                inbound, payer, queued_at=entry.queued_at, typed=entry.typed, begins=begins
            )
            return await self._runs.run(attempt, request, agent, payer)
        finally:
            attempt.leave_place()

    async def _ordered(
        self, entry: Entry, session: Session, command: commands.Command, agent: Answers
    ) -> str | Request:
        """Run a command whose turn it is."""
        inbound = entry.inbound
        if command.name in commands.DECIDING and self._approvals is not None:
            return await self._approvals.words(inbound, session)
        if command.name == "agent":
            return await self._agents.said(session, inbound, command)
        return await agent.commands.run(session, command, outcomes.request(inbound), stop=entry.stop)
