"""Failures that are not the message's fault: lanes wait for model, queue or disk, and chats are notified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

import durable
from channels import pairing
from channels.access import is_allowed
from channels.errors import ChannelError
from channels.message import Inbound
from channels.tables import Platform
from gateway.config.settings import Settings
from gateway.dispatch import replies
from gateway.dispatch.events import Spawn
from gateway.dispatch.lanes import Hold, Lane, Lanes, PendingMessage, RetryAfter
from gateway.dispatch.policy import (
    OUTAGE_SAID,
    TELL_WITHIN_S,
    Outage,
    Pace,
    Verdict,
    cause_of,
    park_verdict,
    wait_words,
)
from gateway.dispatch.replies import Notices
from gateway.errors import MailboxError
from gateway.queue.retry import back_off_s
from session.errors import Fenced, ModelAway, ModelError, RequestTooLarge, SessionError, StoreError, loggable
from session.models.failure import kind_of
from session.models.model import Model
from session.store.store import Session, Store
from session.transcript.key import SessionKey, is_subagent

log = structlog.get_logger("outages")


class HeldBack:
    """The arrivals of one channel that wait because something of the workspace refuses."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def note(self, message_id: str, cause: str) -> None:
        """Note why a message waits, in words for the operator."""
        self._causes[message_id] = cause

    def release(self, message_id: str) -> None:
        """Note that a message waits no longer."""
        self._causes.pop(message_id, None)

    @property
    def cause(self) -> str:
        """Why arrivals wait; empty where none does."""
        return _said(list(self._causes.values()))


def cause_of_lanes(lanes: Iterable[Lane], channel: str | None = None) -> str:
    """Say why messages of a channel, or of any, wait for the workspace; empty where none does."""
    # Of ten thousand lanes hardly any is held: what costs each of them is looked at first.
    held = [entries[0] for lane in lanes if (entries := lane.entries) and entries[0].held]
    return _said([entry.held for entry in held if channel in (None, entry.inbound.channel)], of="chat")


def _said(causes: list[str], of: str = "message") -> str:
    if not causes:
        return ""
    count = f"1 {of} waits" if len(causes) == 1 else f"{len(causes)} {of}s wait"
    return f"{count}: {causes[0]}"


_OWN_CLIENTS = frozenset({"web", "cli"})


class Confidants:
    """Tells messages of allowed people in their own chat from all others."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, inbound: Inbound) -> bool:
        """Say whether the chat that is answered may read a cause; a doubt is a no."""
        # The message of a cron job does not tell who reads the chat that is answered.
        if inbound.source == "cron" or inbound.group or replies.target(inbound)[0] != inbound.key:
            return False
        if inbound.channel in _OWN_CLIENTS:
            return True
        table = getattr(self._settings.channels, inbound.channel, None)
        if not isinstance(table, Platform):
            return False
        try:
            approved = pairing.approved(self._settings.state, inbound.channel)
        except ChannelError:
            # Who was let in cannot be read now, and no cause may be told to anybody else.
            return False
        return is_allowed(inbound.sender.id, table=table, approved=approved)


# The first wait after a try whose conversation was cleared or replaced.
FENCED_S = 0.05
# So many lanes an answer releases from an outage: each answer of theirs releases as many again.
RELEASED = 2


@dataclass(eq=False, slots=True)
class _ModelState:
    """What is known of one model: its outage, its pace, and the lanes that wait for it."""

    outage: Outage = field(default_factory=Outage)
    pace: Pace = field(default_factory=Pace)
    holds: list[Hold] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class Outages:
    """Decides how long the head of a lane waits, and tells the chats that wait.

    Each agent has a model of its own: one that answers says nothing of the others.
    """

    def __init__(
        self,
        *,
        lanes: Lanes,
        store: Store,
        notices: Notices,
        outage_hours: float,
        model_tries: int,
        fenced_tries: int,
        clock: Callable[[], datetime],
        spawn: Spawn,
        confides: Callable[[Inbound], bool] = lambda _: False,
    ) -> None:
        self.draining = False
        self._models: dict[Model | None, _ModelState] = {}
        self._lanes = lanes
        self._store = store
        self._notices = notices
        self._outage_hours, self._model_tries = outage_hours, model_tries
        self._fenced_tries = fenced_tries
        self._clock = clock
        self._spawn = spawn
        self._confides = confides
        # The keys whose chat knows of an outage, each with the model that is away.
        self._told: dict[str, Model | None] = {}

    @property
    def outage(self) -> Outage:
        """What is known of the model that is away longest; where none is, of the one that came back last."""
        outages = [state.outage for state in self._models.values()] or [Outage()]
        if away := [each for each in outages if each.since is not None]:
            return min(away, key=lambda each: each.since or 0.0)
        known = [each for each in outages if each.changed_at is not None]
        return max(known, key=lambda each: str(each.changed_at), default=outages[0])

    def is_away(self, model: Model) -> bool:
        """Say whether this very model is known to be away."""
        return self._of(model).outage.since is not None

    def _of(self, model: Model | None) -> _ModelState:
        state = self._models.get(model)
        if state is None:
            state = self._models[model] = _ModelState()
        return state

    def begins(self, entry: PendingMessage, model: Model) -> None:
        """Note that the turn of an entry asks a model now; its lane is held no longer."""
        if entry.hold is not None and entry.hold in (holds := self._of(entry.model).holds):
            holds.remove(entry.hold)
        entry.asking, entry.model, entry.hold = "", model, None
        entry.asked_at = asyncio.get_running_loop().time()

    def over(self, entry: PendingMessage) -> Verdict | None:
        """Return why an entry is parked that waited for its model as long as it may."""
        if entry.away is None or self._left_s(entry) > 0 or entry.stop.pulled:
            return None
        return Verdict("outage", OUTAGE_SAID.format(self._outage_hours), cause_of(entry.away))

    def _left_s(self, entry: PendingMessage) -> float:
        waited = self._clock() - (entry.away_at or self._clock())
        return (timedelta(hours=self._outage_hours) - waited).total_seconds()

    async def wait(self, entry: PendingMessage, session: Session, error: ModelError) -> RetryAfter | None:
        """Keep the lane waiting after a failed try of its message; None: it is to be parked.

        An outage or a rate limit holds it up to ``limits.outage_hours``, any other failure for
        ``limits.model_tries`` tries.
        """
        state = self._of(entry.model)
        outage = state.outage
        others = entry.answers is not None and entry.answers < outage.answers
        entry.answers = outage.answers
        limited = isinstance(error, ModelAway) and error.cause == "rate_limit"
        entry.tries.rate_limits += limited and others
        kind = kind_of(error, others_answered=others, rate_limits=entry.tries.rate_limits)
        if kind == "refused":
            return None
        after_s = error.after_s if isinstance(error, ModelAway | RequestTooLarge) else None
        if limited:
            state.pace.refused(entry.asked_at, asyncio.get_running_loop().time(), after_s)
        log.debug("model.said", error=str(error))
        entry.tries.away += isinstance(error, ModelAway)
        if kind == "counted":
            entry.tries.counted += 1
            wait = back_off_s(entry.tries.counted, after_s=after_s, spread=durable.uniform())
            tries, words = entry.tries.counted, loggable(error)
            log.warning("model.failed", tries=tries, error=words, hint=error.hint, wait_s=round(wait, 2))
            return RetryAfter(wait) if tries < self._model_tries else None
        assert isinstance(error, ModelAway)
        return await self._hold(entry, session, error, paced=limited)

    async def _hold(
        self, entry: PendingMessage, session: Session, error: ModelAway, *, paced: bool
    ) -> RetryAfter | None:
        loop, state, entry.held = asyncio.get_running_loop(), self._of(entry.model), ""
        outage = state.outage
        # This outage may end while the chat is notified, and the next one has an event of its own.
        over = outage.over
        outage.met(error, loop.time())
        reason, said = wait_words(error, named=self._confides(entry.inbound))
        # One that comes again waited since then; one that a person put back after it was parked did not.
        noted = session.journal.noted(entry.inbound.id, reason) if entry.letter.suspect else None
        entry.away, entry.away_at = error, entry.away_at or (noted and noted.at) or self._clock()
        if (left_s := self._left_s(entry)) <= 0:
            return None
        entry.tries.waits += 1
        wait = back_off_s(entry.tries.away, after_s=error.after_s, spread=durable.uniform())
        hold = entry.hold = Hold(loop.time() + (wait if paced or error.after_s is not None else 0.0), paced)
        state.holds.append(hold)
        self._release_paced(state)
        log.warning(
            "model.away", cause=error.cause, error=loggable(error), hint=error.hint, wait_s=round(wait, 2)
        )
        if entry.tries.away > 1:
            if not outage.telling:
                outage.telling = True
                self._spawn(self._tell_waiting(error, entry.model, over), "tell waiting chats")
            if not entry.away_told and entry.inbound.key not in self._told:
                # One that is noted may not be stored: the same one again is known by its id.
                with self._telling(entry, entry.model):
                    await self._notices.tell(session, entry.inbound, reason, said)
                entry.away_told = True
        return RetryAfter(min(left_s, left_s if paced else wait), hold.released)

    def _release_paced(self, state: _ModelState) -> None:
        """Let the lane ask that a rate limit holds longest, as soon as pace and Retry-After allow."""
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        paced = [hold for hold in state.holds if hold.paced]
        if not paced or self.draining:
            return
        loop, pace = asyncio.get_running_loop(), state.pace
        first = min(paced, key=lambda hold: hold.not_before)
        if (at := max(first.not_before, pace.next_at)) <= loop.time():
            self._release(state, first)
            pace.released(loop.time())
            at = pace.next_at
        state.timer = loop.call_at(at, self._release_paced, state)

    def _release(self, state: _ModelState, hold: Hold) -> None:
        state.holds.remove(hold)
        hold.released.set()

    async def delay(self, entry: PendingMessage, error: MailboxError | StoreError) -> RetryAfter:
        """Keep the lane waiting for queue or disk; of the disk its chat is told once."""
        entry.tries.waits += 1
        entry.held = str(error) if isinstance(error, StoreError) else ""
        wait = back_off_s(entry.tries.waits, spread=durable.uniform())
        log.warning("turn.delayed", error=str(error), hint=error.hint, wait_s=round(wait, 2))
        if isinstance(error, StoreError) and not entry.disk_told:
            try:
                await self._notices.put(entry.inbound, *wait_words(error))
                entry.disk_told = True
            except MailboxError as refused:
                log.warning("notice.delayed", error=str(refused))
            except Exception:
                # The notice ends here: an error of its own would end the lane, and with it the daemon.
                log.exception("notice.crashed")
        return RetryAfter(wait)

    def fenced(self, entry: PendingMessage, error: Fenced) -> RetryAfter | None:
        """Drop a lost delivery; try any other message again on the conversation as it is now, ever later.

        After ``fenced_tries`` it is parked: it would hold up its lane for ever.
        """
        if entry.letter.lost:
            log.info("turn.fenced", let_go=True)
            return None
        entry.tries.fenced += 1
        wait_s = back_off_s(entry.tries.fenced, first_s=FENCED_S)
        log.info("turn.fenced", tries=entry.tries.fenced, error=str(error), wait_s=round(wait_s, 2))
        if entry.tries.fenced >= self._fenced_tries:
            entry.verdict = park_verdict(error)
            return RetryAfter(FENCED_S)
        return RetryAfter(wait_s)

    def model_answers(self, model: Model, entry: PendingMessage, *, answered: bool = True) -> None:
        """Note that a call succeeded: lanes that wait for this model go on, a few at a time.

        ``answered`` is false where the model refused the message: it is there, but answered none.
        """
        now, state = asyncio.get_running_loop().time(), self._of(model)
        entry.away = entry.away_at = None
        if state.outage.since is not None:
            state.outage.ended()
        state.outage.answers += answered
        self._told = {key: away for key, away in self._told.items() if away is not model}
        state.pace.answered(now)
        if not state.holds:
            return
        free = [hold for hold in state.holds if not hold.paced and hold.not_before <= now]
        for hold in free[:RELEASED]:
            self._release(state, hold)
        self._release_paced(state)

    async def _tell_waiting(self, error: ModelAway, model: Model | None, over: asyncio.Event) -> None:
        """Until the outage is ``over``, tell the chats whose messages wait without a try of their own."""
        loop = asyncio.get_running_loop()
        while not over.is_set() and not self.draining:
            for lane in self._lanes:
                entry = lane.entries[0] if lane.entries else None
                if entry is None or is_subagent(lane.key):
                    continue
                # It waits for a person, or its turn asks another model.
                if entry.asking or entry.model not in (None, model):
                    continue
                if lane.key in self._told or loop.time() - entry.since < TELL_WITHIN_S / 3:
                    continue
                await self._tell(entry, error, model)
            # A chat may begin to wait at any moment of the outage: it is looked for until the outage is over.
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), TELL_WITHIN_S / 3)

    async def _tell(self, entry: PendingMessage, error: ModelAway, model: Model | None) -> None:
        inbound = entry.inbound
        reason, said = wait_words(error, named=self._confides(inbound))
        try:
            with self._telling(entry, model):
                async with self._store.open(SessionKey(inbound.key)) as session:
                    await self._notices.tell(session, inbound, reason, said)
        except (MailboxError, SessionError) as refused:
            # One chat ends here: the others that wait are told all the same, and this one at the next look.
            log.warning("notice.delayed", key=inbound.key, id=inbound.id, error=str(refused))

    @contextmanager
    def _telling(self, entry: PendingMessage, model: Model | None) -> Iterator[None]:
        """Take a chat for told while it is; refused by queue or disk, it is told at the next try or look."""
        # Noted first: a try of the message itself may meet the outage meanwhile, and would tell it, too.
        key = entry.inbound.key
        self._told[key] = model
        try:
            yield
        # What nobody foresaw is not tried again: it would count as an attempt at the message each time.
        except (MailboxError, SessionError, asyncio.CancelledError):
            self._told.pop(key, None)
            raise
