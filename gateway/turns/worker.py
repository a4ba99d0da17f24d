"""The second hand-over: letters come in, turns run, replies are durable before their letters are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import structlog

import durable
from channels.message import Inbound
from gateway.errors import LetterLost, MailboxError
from gateway.observer import Observer
from gateway.queue.mailbox import INBOUND, Mailbox, carried
from gateway.queue.retry import back_off_s
from gateway.turns.approvals import Approvals
from gateway.turns.arrivals import Arrivals
from gateway.turns.batching import Collecting
from gateway.turns.commands import Orders
from gateway.turns.completion import LetterEnded, Parking, Settlement
from gateway.turns.context import MessageContext, Step
from gateway.turns.crash_guard import Attempts
from gateway.turns.events import Events
from gateway.turns.failures import Outages
from gateway.turns.jobs import Jobs
from gateway.turns.lanes import Entry, Lanes, RetryAfter
from gateway.turns.letter_rules import LetterRules
from gateway.turns.limits import Quota, Refusals
from gateway.turns.pipeline import (
    Admit,
    Batch,
    Command,
    Complete,
    Deduplicate,
    Enclosures,
    Guard,
    Pipeline,
    Route,
)
from gateway.turns.policy import Outage
from gateway.turns.replies import Notices
from gateway.turns.rollover import RollOver
from gateway.turns.routing import AgentSet, ChatAgents
from gateway.turns.run import Run
from gateway.turns.subagents import Subagents, is_of_subagent
from session.errors import Fenced, NewerFormat, SessionError, StoreError
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.turn.turn import Reply

log = structlog.get_logger("worker")


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
        clock: Callable[[], datetime] = durable.now,
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self.lanes = Lanes(self.work, group=group, concurrent=rules.concurrent_turns)
        self.attached = asyncio.Event()
        self._mailbox, self._store, self._events = mailbox, store, events
        self._turns = agents.every[""].turns
        self._rules, self._group = rules, group
        self._quota, self._subagents = quota, subagents
        self._draining, self._observer = False, observer
        notices = Notices(mailbox=mailbox, events=events, clock=clock)
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
        ended = agents.every[""].commands.ended
        steps: tuple[Step, ...] = (
            Deduplicate(self.orders),
            Command(self._collecting, now=self._turns.now),
            Route(store, self._agents, subagents),
            Batch(self._collecting),
            Admit(quota, self._collecting, subagents),
            Guard(Attempts(rules.attempts), self._collecting, now=self._turns.now),
            RollOver(rules.idle_hours, notices=notices, ended=ended, clock=clock),
            self._open_run(turn_ended),
        )
        complete = Complete(settlement, self._parking, enclosures=enclosures, jobs=jobs)
        self._pipeline = Pipeline(steps, complete)

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

    def _open_run(self, turn_ended: Callable[[Session, Reply], None]) -> Run:
        return Run(
            events=self._events,
            quota=self._quota,
            outages=self._outages,
            collecting=self._collecting,
            agents=self._agents,
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
            return await self._pipeline.run(MessageContext(entry, session))
