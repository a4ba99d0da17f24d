"""The second hand-over: letters come in, turns run, replies are durable before their letters are gone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from channels.errors import Unreadable
from channels.message import Inbound, read_inbound
from gateway import answers, edits, moves, recognise, unreadable
from gateway.errors import LetterLost, MailboxError
from gateway.events import EventKind, Events, Onlooker
from gateway.idle import IdleBoundary
from gateway.lanes import Again, Entry, Lanes
from gateway.mailbox import INBOUND, Letter, Mailbox, Post
from gateway.notices import Notices
from gateway.patience import Patience
from gateway.policy import (
    ATTEMPTS_SAID,
    OUTAGE_SAID,
    TOO_LARGE_SAID,
    Verdict,
    back_off_s,
    cause_of,
    park_verdict,
)
from gateway.quota import Quota
from gateway.stops import Stops
from session import commands
from session.attachments import Attachment
from session.commands import Commands
from session.errors import Fenced, LineTooLong, ModelAway, NewerFormat, SessionError, StoreError
from session.key import SessionKey
from session.links import may_link
from session.models import Meter
from session.store import Session, Store
from session.turn import Reply, Request, Turns

log = structlog.get_logger("worker")

Enclosures = Callable[[Session, Request, str], Awaitable[Sequence[Attachment]]]
LetterEnded = Callable[[Inbound, Literal["ok", "error"], str, int], None]

REMEMBERED_MAX = 10_000
SOON_S = 0.05


@dataclass(frozen=True, slots=True)
class Rules:
    """The figures of ``[limits]`` that decide over letters."""

    concurrent_turns: int = 64
    attempts: int = 3
    outage_hours: float = 24
    pending_per_chat: int = 50
    idle_hours: float = 0


class Worker:
    """Takes inbound letters, runs their turns in lanes, and settles each with its reply."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        store: Store,
        turns: Turns,
        chat_commands: Commands,
        events: Events,
        rules: Rules,
        group: asyncio.TaskGroup,
        quota: Quota | None = None,
        enclosures: Enclosures | None = None,
        turn_ended: Callable[[Session, Reply], None] = lambda session, reply: None,
        letter_ended: LetterEnded = lambda inbound, status, error, duration_ms: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.lanes = Lanes(self.work, group=group, concurrent=rules.concurrent_turns)
        self.attached = asyncio.Event()
        self._mailbox = mailbox
        self._store = store
        self._turns = turns
        self._commands = chat_commands
        self._events = events
        self._rules = rules
        self._group = group
        self._quota = quota
        self._enclosures = enclosures
        self._turn_ended = turn_ended
        self._letter_ended = letter_ended
        self._clock = clock
        self._draining = False
        self._suspects = asyncio.Lock()
        self._owed: OrderedDict[tuple[str, str], None] = OrderedDict()  # ended, but not acknowledged yet
        self._replied: OrderedDict[tuple[str, str], None] = OrderedDict()  # acknowledged, as far as we know
        self._notices = Notices(mailbox=mailbox, events=events, clock=clock)
        self._stops = Stops(lanes=self.lanes, store=store, mailbox=mailbox, clock=clock, spawn=self._spawn)
        self.stop = self._stops.stop
        self._patience = Patience(
            lanes=self.lanes,
            store=store,
            notices=self._notices,
            outage_hours=rules.outage_hours,
            clock=clock,
            spawn=self._spawn,
        )
        self.outage = self._patience.outage
        self._idle = IdleBoundary(
            rules.idle_hours, notices=self._notices, ended=chat_commands.ended, clock=clock
        )

    # -- taking ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take letters until cancelled; what has not ended then goes back to its box."""
        async with self._mailbox.take(INBOUND) as letters:
            self.attached.set()
            async for letter in letters:
                if not self._draining:
                    self._receive(letter)

    async def drain(self, within_s: float) -> bool:
        """Start nothing new; return whether all running turns ended within ``within_s`` seconds."""
        self._draining = self._patience.draining = True
        return await self.lanes.drain(within_s)

    def _receive(self, letter: Letter) -> None:
        try:
            inbound, ignored = read_inbound(letter.body)
        except Unreadable as error:
            parking = unreadable.park(letter, error, mailbox=self._mailbox, notices=self._notices)
            self._spawn(parking, "park unreadable")
            return
        if ignored:
            log.warning("letter.fields_ignored", key=inbound.key, id=inbound.id, fields=ignored)
        entry = self.lanes.add(inbound, letter)
        if entry is None:
            return
        lane = self.lanes.get(inbound.key)
        command = recognise.command(inbound)
        if command is not None and command.name == "stop":
            self.stop(inbound.key, inbound.id, asked=inbound)
        elif inbound.kind == "edit" and lane is not None:
            edits.replace(lane, inbound)
        if lane is not None and len(lane.entries) > 1:
            self._crowd(entry, len(lane.entries))
            if self._events.watched(inbound.key):
                self._spawn(self._events.tell("queued", inbound.key, inbound.id), "event queued")

    def _crowd(self, entry: Entry, waiting: int) -> None:
        lane = self.lanes.get(entry.inbound.key)
        if lane is None or lane.crowded or waiting <= self._rules.pending_per_chat:
            return
        lane.crowded = True
        text = f"{waiting - 1} messages of this chat wait. All will be answered, one after the other."
        self._spawn(self._notices.put(entry.inbound, "busy", text), "notice busy")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something beside the lanes; what it raises is logged and ends nothing else."""

        async def guarded() -> None:
            try:
                await work
            except (MailboxError, SessionError) as error:
                log.warning("side_work.failed", work=name, error=str(error), hint=error.hint)
            except Exception:  # the end of one small errand
                log.exception("side_work.crashed", work=name)

        self._group.create_task(guarded(), name=name)

    # -- one try of a letter -----------------------------------------------------------------------

    async def work(self, entry: Entry) -> Again | None:
        """Do one try of the head of a lane; None when its letter has ended or is no longer ours."""
        inbound = entry.inbound
        bound = structlog.contextvars.bind_contextvars(key=inbound.key, id=inbound.id)
        try:
            return await self._try(entry)
        except NewerFormat:
            raise
        except Fenced:
            log.info("turn.fenced")
            return Again(SOON_S)
        except LetterLost:
            _remember(self._owed, entry)
            return None if entry.letter.lost else Again(SOON_S)  # it has come again: let go of that one
        except (MailboxError, StoreError) as error:
            return await self._patience.delay(entry, error)
        except Exception:  # one letter ends here: what nobody foresaw is tried again, then parked
            log.exception("turn.crashed")
            entry.tries += 1
            entry.crashes += 1
            return Again(back_off_s(entry.tries))
        finally:
            structlog.contextvars.reset_contextvars(**bound)

    async def _try(self, entry: Entry) -> Again | None:
        inbound = entry.inbound
        entry.begun_at = entry.begun_at or asyncio.get_running_loop().time()
        name = (inbound.key, inbound.id)
        if name in self._owed or (entry.letter.suspect and name in self._replied):
            letter = entry.letter
            await self._mailbox.settle(letter)
            entry.ended = letter
            self._owed.pop(name, None)
            return None
        async with self._store.open(SessionKey(inbound.key)) as session:
            if entry.verdict is not None:
                await self._park(entry, session, entry.verdict)
                return None
            reply = await self._outcome(entry, session)
            if isinstance(reply, Reply):
                return await self._send(entry, await self._with_files(entry.inbound, session, reply))
            return reply

    async def _with_files(self, inbound: Inbound, session: Session, reply: Reply) -> Reply:
        """Add the files that a model's answer links to."""
        answered = not reply.silent and reply.kind == "reply" and recognise.asks_model(inbound)
        if self._enclosures is None or not answered or not may_link(reply.text):
            return reply
        files = await self._enclosures(session, recognise.request(inbound), reply.text)
        return replace(reply, files=files)

    async def _outcome(self, entry: Entry, session: Session) -> Reply | Again | None:
        """Say what the letter ended in: what is stored of it, else what a command or turn makes of it now."""
        inbound = entry.inbound
        if (moved_to := moves.target(inbound)) is not None:
            return await moves.settle(self._store, session, inbound, moved_to)
        if inbound.kind == "edit":
            return await edits.settle(session, inbound, at=self._turns.now())
        command = recognise.command(inbound)
        if command is not None and command.name == "stop" and await self._stops.take(inbound):
            return Reply(silent=True)
        stored = recognise.stored(session, inbound)
        return stored if stored is not None else await self._answer(entry, session, command)

    async def _answer(
        self, entry: Entry, session: Session, command: commands.Command | None
    ) -> Reply | Again | None:
        """Run the command or the turn; None when the letter was parked."""
        inbound = entry.inbound
        with ExitStack() as place:  # it counts for its person from the decision on, not from the turn
            if recognise.asks_model(inbound) and self._quota is not None:
                asked = entry.admitted or session.find(inbound.id) is not None
                if not asked and (refusal := await self._quota.refusal(session, inbound)) is not None:
                    return refusal
                entry.admitted = True
                place.enter_context(self._quota.running(inbound))
            begun = 0
            if entry.letter.suspect or entry.crashes:
                begun = max(session.journal.attempts(inbound.id), entry.crashes)
                if begun >= self._rules.attempts:
                    verdict = Verdict("attempts", ATTEMPTS_SAID.format(self._rules.attempts))
                    await self._park(entry, session, verdict)
                    return None
                exchange = session.find(inbound.id)
                tail = exchange is not None and exchange.tail
                begun = await session.journal.begin(inbound.id, transcript_held_lines=tail)
            if command is not None:
                request = recognise.request(inbound)
                answer = await self._commands.run(session, command, request, stop=entry.stop)
                if isinstance(answer, str):
                    known = await session.journal.conclude(inbound.id, "command", text=answer)
                    return Reply(text=answer, seq=known.seq or 0)
                entry.asked = answer
            else:
                await self._idle.before(entry, session)
        return await self._turn(entry, session, begun=begun)

    async def _turn(self, entry: Entry, session: Session, *, begun: int) -> Reply | Again | None:
        inbound = entry.inbound
        if begun > 1:
            async with self._suspects:
                return await self._turn(entry, session, begun=1)
        meter = Meter()
        try:
            with self._quota.running(inbound) if self._quota is not None else nullcontext():
                reply = await self._run(entry, session, meter)
        except ModelAway as error:
            if begun:
                await session.journal.strike(inbound.id)
            again = await self._patience.wait(entry, session, error)
            if again is None:
                said = OUTAGE_SAID.format(self._rules.outage_hours)
                await self._park(entry, session, Verdict("outage", said, cause_of(error)))
            return again
        except asyncio.CancelledError:
            if begun:
                await asyncio.shield(session.journal.strike(inbound.id))
            raise
        except StoreError as error:
            if isinstance(error, LineTooLong):
                self._count(inbound, meter)
                await self._park(entry, session, Verdict("too_large", TOO_LARGE_SAID, cause_of(error)))
                return None
            if begun:
                await session.journal.strike(inbound.id)
            raise
        except SessionError as error:
            self._patience.model_answers()
            self._count(inbound, meter)
            verdict = park_verdict(error)
            log.warning("turn.failed", reason=verdict.reason, error=str(error), hint=error.hint)
            await self._park(entry, session, verdict)
            return None
        self._patience.model_answers()
        self._count(inbound, meter)
        self._turn_ended(session, reply)
        return reply

    async def _run(self, entry: Entry, session: Session, meter: Meter) -> Reply:
        inbound = entry.inbound
        if self._events.watched(inbound.key):
            await self._events.tell("started", inbound.key, inbound.id)
        return await self._turns.run(
            session,
            entry.asked or recognise.request(inbound),
            watcher=Onlooker(self._events, inbound.key, inbound.id, self._spawn),
            stop=entry.stop,
            careful=entry.told,
            meter=meter,
        )

    def _count(self, inbound: Inbound, meter: Meter) -> None:
        if self._quota is not None:
            self._quota.record(inbound, meter.usage)

    # -- sending -----------------------------------------------------------------------------------

    async def _send(self, entry: Entry, reply: Reply) -> Again | None:
        if entry.letter.lost:
            return Again(SOON_S)  # it comes again, perhaps by then, and the stored reply is sent
        inbound = entry.inbound
        if reply.silent:
            await self._settle(entry, [], error=reply.reason)
            if reply.reason:
                text, event_id = reply.text or commands.STOPPED, f"{inbound.id}#notice.{reply.reason}"
                await self._events.tell("notice", inbound.key, inbound.id, text=text, event_id=event_id)
            return None
        post = answers.reply(inbound, reply, self._clock())
        await self._settle(entry, [post], error=reply.reason if reply.kind == "notice" else "")
        _remember(self._replied, entry)  # the acknowledgement may yet be lost with its connection
        log.info("turn.replied", repeated=reply.repeated, chars=len(reply.text))
        kind: EventKind = "notice" if reply.kind == "notice" else "reply"
        await self._notices.show(kind, inbound, post, reply.text, reply.seq)
        return None

    async def _settle(self, entry: Entry, posts: Sequence[Post], *, error: str) -> None:
        letter = entry.letter
        try:
            await self._mailbox.settle(letter, posts)
        except LetterLost:
            self._end(entry, error)
            raise
        entry.ended = letter
        self._end(entry, error)

    async def _park(self, entry: Entry, session: Session, verdict: Verdict) -> None:
        """Tell the chat, move the letter aside, and remember in between that it is parked."""
        inbound, letter, reason = entry.inbound, entry.letter, verdict.reason
        entry.verdict, entry.parking = verdict, asyncio.Event()
        attempts = max(session.journal.attempts(inbound.id), entry.crashes, 1)
        try:
            await self._notices.tell(session, inbound, reason, verdict.said)
            await self._mailbox.park(
                letter,
                key=inbound.key,
                reason=verdict.shown,
                attempts=attempts,
                mark=lambda: session.journal.conclude(inbound.id, "parked", reason=reason),
            )
            entry.ended = letter
        finally:
            entry.parking.set()
        log.warning("letter.parked", reason=reason, attempts=attempts)
        self._end(entry, reason)

    def _end(self, entry: Entry, error: str) -> None:
        """Say how a letter ended to whoever keeps count of it."""
        took_s = asyncio.get_running_loop().time() - entry.begun_at
        try:
            self._letter_ended(entry.inbound, "error" if error else "ok", error, round(took_s * 1000))
        except Exception:  # what they do with it must not bring the letter back
            log.exception("letter_ended.crashed")


def _remember(names: OrderedDict[tuple[str, str], None], entry: Entry) -> None:
    """Add a letter to the youngest ``REMEMBERED_MAX`` of its kind."""
    names[entry.inbound.key, entry.inbound.id] = None
    while len(names) > REMEMBERED_MAX:
        names.popitem(last=False)
