"""The dispatch of a message, from its delivery to its end: ten steps in one list.

    decode        a malformed message is parked
    deduplicate   its outcome is stored: it is sent again, and no model is asked
    command       an edit or a deletion is done; other commands wait for ``run``
    route         a moved chat, a subagent's result, the agent that answers
    batch         waits for further messages that the same turn will answer
    admit         the limits of its person, its chat and the day
    guard         counts crashes, lets a suspect run alone, gives a poison message up
    roll over     a chat that was silent for long begins a new session
    run           the command, or the turn
    complete      what the steps decided is made durable, and the delivery is acknowledged

A message is decoded when it arrives, held to the flood limit and put into its lane; a command that concerns
a running turn acts at once. The other steps run at the head of the lane: the first that decides ends
the list, and its decision is completed. No step knows another: they share the ``MessageContext``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

import durable
from channels.errors import Unreadable
from channels.message import Inbound, read_inbound
from gateway.dispatch import edits, jobs, messages
from gateway.dispatch.approvals import Approvals
from gateway.dispatch.batching import Batching, QueueModes, QueueRules
from gateway.dispatch.commands import Orders
from gateway.dispatch.completion import Completion, Enclosures, LetterEnded, park_unreadable
from gateway.dispatch.context import Ending, MessageContext, Step
from gateway.dispatch.crash_guard import CrashGuard
from gateway.dispatch.deduplication import Deduplicate
from gateway.dispatch.edits import Edits
from gateway.dispatch.events import Events
from gateway.dispatch.failures import Outages
from gateway.dispatch.jobs import Jobs
from gateway.dispatch.lanes import Lane, Lanes, PendingMessage, RetryAfter
from gateway.dispatch.limits import Admit, Flood, Quota
from gateway.dispatch.policy import FENCED_TRIES, UNANSWERED, Outage, Verdict, broken
from gateway.dispatch.replies import Notices
from gateway.dispatch.rollover import RollOver
from gateway.dispatch.routing import AgentSet, Routing
from gateway.dispatch.run import Run
from gateway.dispatch.subagents import Subagents
from gateway.errors import LetterLost, MailboxError
from gateway.observer import Observer
from gateway.queue.mailbox import INBOUND, Letter, Mailbox, carried
from gateway.queue.retry import back_off_s
from session.errors import Fenced, NewerFormat, SessionError, StoreError
from session.store.store import Session, Store
from session.transcript.key import SUBAGENTS, SessionKey
from session.turn.turn import Reply

log = structlog.get_logger("worker")


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The figures that decide over messages, of ``[limits]`` and our own."""

    concurrent_turns: int = 64
    attempts: int = 3
    model_tries: int = 5
    outage_hours: float = 24
    pending_per_chat: int = 50
    flood_per_chat: int = 5000
    idle_hours: float = 0
    fenced_tries: int = FENCED_TRIES
    queue: QueueRules = field(default_factory=QueueRules)


class Worker:
    """Takes deliveries of the inbound queue, puts them into lanes, and runs the steps over each message."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        store: Store,
        agents: AgentSet,
        events: Events,
        rules: DispatchRules,
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
        self.lanes = lanes = Lanes(self.work, group=group, concurrent=rules.concurrent_turns)
        self.attached = asyncio.Event()
        self._mailbox, self._store, self._events = mailbox, store, events
        self._group, self._observer, self._pending = group, observer, rules.pending_per_chat
        self._subagents = subagents
        self._draining, self._closing = False, asyncio.Event()
        now, spawn, default = agents.every[""].turns.now, self._spawn, agents.every[""]
        self._notices = notices = Notices(mailbox=mailbox, events=events, clock=clock)
        self._modes = modes = QueueModes(rules.queue, lanes)
        self._routing = routing = Routing(agents, store=store, notices=notices, subagents=subagents)
        self._completion = Completion(
            mailbox=mailbox,
            events=events,
            notices=notices,
            letter_ended=letter_ended,
            clock=clock,
            enclosures=enclosures,
            jobs=jobs,
            subagents=subagents,
            now=now,
            attempts=rules.attempts,
            fenced_tries=rules.fenced_tries,
            observer=observer,
        )
        self._approvals = approvals = Approvals.of(
            agents, lanes=lanes, mailbox=mailbox, notices=notices, clock=clock, spawn=spawn, decides=decides
        )
        self.orders = orders = Orders(
            *(lanes, store, mailbox, routing, approvals), clock=clock, spawn=spawn, subagents=subagents
        )
        self._flood = Flood(
            rules.flood_per_chat, store=store, orders=orders, completion=self._completion, spawn=spawn
        )
        self._outages = outages = Outages(
            lanes=lanes,
            store=store,
            notices=notices,
            outage_hours=rules.outage_hours,
            model_tries=rules.model_tries,
            fenced_tries=rules.fenced_tries,
            clock=clock,
            spawn=spawn,
            confides=confides,
        )
        self.is_away = outages.is_away
        self._steps: tuple[Step, ...] = (
            Deduplicate(orders),
            Edits(modes, now=now),
            routing,
            Batching(modes),
            Admit(quota, subagents),
            CrashGuard(rules.attempts, now=now),
            RollOver(rules.idle_hours, notices=notices, ended=default.commands.ended, clock=clock),
            Run(
                events=events,
                quota=quota,
                outages=outages,
                modes=modes,
                routing=routing,
                approvals=approvals,
                turn_ended=turn_ended,
                spawn=spawn,
            ),
        )

    @property
    def outage(self) -> Outage:
        """What is known of a model that is away."""
        return self._outages.outage

    async def run(self) -> None:
        """Take deliveries until cancelled; what has not ended then goes back to its queue."""
        async with self._mailbox.take(INBOUND) as letters:
            self.attached.set()
            async for letter in letters:
                if not self._draining:
                    self._receive(letter)

    async def drain(self, within_s: float) -> bool:
        """Start nothing new; return whether all running turns ended within ``within_s`` seconds."""
        self._draining = self._outages.draining = True
        self._closing.set()
        self._flood.close()
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

    # -- when a message arrives --------------------------------------------------------------------

    def _receive(self, letter: Letter) -> None:
        """Take one delivery; nothing is raised, so that the next one is taken whatever this one holds."""
        try:
            if letter.suspect:
                self._observer.redelivered(letter.box)
            inbound, ignored = read_inbound(letter.body)
            if ignored:
                log.warning("letter.fields_ignored", key=inbound.key, id=inbound.id, fields=ignored)
            self._arrive(inbound, letter)
        except Unreadable as error:
            # It would come again and again, always the same: nobody can ever answer it.
            self._park(letter, error)
        except Exception as error:
            # One message ends here: the loop serves all chats.
            log.exception("letter.broken", id=letter.id)
            waiting = (entry for lane in self.lanes for entry in lane.entries if entry.letter is letter)
            if (entry := next(waiting, None)) is not None:
                # It is in its lane already, and is parked at its turn.
                entry.verdict = Verdict("failed", UNANSWERED, type(error).__name__)
            else:
                self._park(letter, broken(error))

    def _arrive(self, inbound: Inbound, letter: Letter) -> None:
        """Put a message into its lane, or refuse it; do at once what it means for others there."""
        typed, (inbound, agent) = inbound.text, self._routing.read(inbound)
        command = messages.command(inbound)
        lane = self.lanes.get(inbound.key)
        if self._flood.meets(inbound, lane):
            if command is not None:
                self.orders.received(inbound, command, again=letter.suspect)
            self._flood.refuse(inbound, letter, lane)
            return
        entry = self.lanes.add(inbound, letter)
        if entry is None:
            # It is there already, and only got a further acknowledgement.
            return
        if agent:
            entry.agent, entry.typed = agent, typed if typed != inbound.text else ""
        lane = self.lanes.get(inbound.key)
        assert lane is not None
        if command is not None:
            self.orders.received(inbound, command, again=letter.suspect)
        if inbound.kind == "edit":
            edits.replace(lane, inbound)
        if inbound.source == "cron":
            jobs.replace_waiting(lane, inbound)
        self._modes.arrived(inbound)
        if len(lane.entries) > 1:
            self._crowd(lane, inbound)
            if jobs.is_shown(inbound) and self._events.watched(inbound.key):
                self._spawn(self._events.tell("queued", inbound.key, inbound.id), "event queued")

    def _park(self, letter: Letter, error: Unreadable) -> None:
        parking = park_unreadable(
            letter, error, mailbox=self._mailbox, notices=self._notices, closing=self._closing
        )
        self._spawn(parking, "park unreadable")

    def _crowd(self, lane: Lane, inbound: Inbound) -> None:
        """Tell a chat once that many of its messages wait."""
        waiting = len(lane.entries)
        if lane.crowded or waiting <= self._pending:
            return
        lane.crowded = True
        held = "1 message of this chat is" if waiting == 2 else f"{waiting - 1} messages of this chat are"
        text = f"{held} waiting. {self._modes.said(inbound)}"
        self._spawn(self._notices.put(inbound, "busy", text), "notice busy")

    # -- at the head of its lane -------------------------------------------------------------------

    async def work(self, entry: PendingMessage) -> RetryAfter | None:
        """Do one try of the head of a lane; None when its message has ended or is no longer ours."""
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
            # The outcome is stored, and only the acknowledgement missed the delivery: it comes again.
            return self._completion.lost(entry)
        except (MailboxError, StoreError) as error:
            return await self._outages.delay(entry, error)
        except Exception as error:
            # One message ends here: what nobody foresaw is tried again, then parked.
            log.exception("turn.crashed")
            return (
                None if self._completion.crashed(entry, error) else RetryAfter(back_off_s(entry.tries.waits))
            )
        finally:
            carried.reset(carries)
            structlog.contextvars.reset_contextvars(**bound)

    async def _try(self, entry: PendingMessage) -> RetryAfter | None:
        """Run the steps up to the first that decides, and complete what it decided."""
        inbound, completion = entry.inbound, self._completion
        entry.begun_at = entry.begun_at or asyncio.get_running_loop().time()
        if await completion.acknowledged_again(entry):
            return None
        if entry.verdict is not None and completion.is_shut(entry):
            await completion.park(entry, None, entry.verdict)
            return None
        agents = self._subagents if inbound.channel == SUBAGENTS else None
        if agents is not None and await agents.turned_away(entry):
            return None
        store = agents.store if agents is not None else self._store
        async with store.open(SessionKey(inbound.key)) as session:
            if entry.verdict is not None:
                await completion.park(entry, session, entry.verdict)
                return None
            if agents is not None:
                await agents.opened(session, entry.inbound)
            message = MessageContext(entry, session)
            ending: Ending | None = None
            with message.leave:
                for step in self._steps:
                    if (ending := await step.take(message)) is not None:
                        break
            assert ending is not None
            return await completion.end(message, ending)
