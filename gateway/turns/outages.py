"""While the model is away or the disk is full: lanes wait in order, and each chat is told once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

import structlog

from channels.message import Inbound
from gateway.errors import MailboxError
from gateway.queue.retry import back_off_s
from gateway.turns.events import Spawn
from gateway.turns.lanes import Entry, Lanes, RetryAfter
from gateway.turns.notices import Notices
from gateway.turns.policy import TELL_WITHIN_S, Outage, fenced_off_s, park_verdict, wait_words
from session.errors import Fenced, ModelAway, SessionError, StoreError, loggable
from session.models.model import Model
from session.store.store import Session, Store
from session.transcript.key import SessionKey, is_subagent

log = structlog.get_logger("outages")


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
        fenced_tries: int,
        clock: Callable[[], datetime],
        spawn: Spawn,
        confides: Callable[[Inbound], bool] = lambda _: False,
    ) -> None:
        self.draining = False
        self._outages: dict[Model | None, Outage] = {}
        self._lanes = lanes
        self._store = store
        self._notices = notices
        self._outage_hours = outage_hours
        self._fenced_tries = fenced_tries
        self._clock = clock
        self._spawn = spawn
        self._confides = confides
        # The keys whose chat knows of an outage, each with the model that is away.
        self._told: dict[str, Model | None] = {}

    @property
    def outage(self) -> Outage:
        """What is known of a model that is away; where none is, of any."""
        away = (each for each in self._outages.values() if each.since is not None)
        return next(away, None) or self._of(next(iter(self._outages), None))

    def is_away(self, model: Model) -> bool:
        """Say whether this very model is known to be away."""
        return model in self._outages and self._outages[model].since is not None

    def _of(self, model: Model | None) -> Outage:
        return self._outages.setdefault(model, Outage())

    async def wait(self, entry: Entry, session: Session, error: ModelAway) -> RetryAfter | None:
        """Keep the lane waiting through an outage, its chat told once. None: it waited long enough."""
        now, outage = asyncio.get_running_loop().time(), self._of(entry.model)
        # This outage may end while the chat is told, and the next one has an event of its own.
        over = outage.over
        if outage.met(error, now):
            self._spawn(self._tell_waiting(error, entry.model, over), "tell waiting chats")
        entry.tries.waits += 1
        entry.held = ""
        reason, said = wait_words(error, named=self._confides(entry.inbound))
        # One that comes again waited since then; one that a person put back after it was parked did not.
        noted = session.journal.noted(entry.inbound.id, reason) if entry.letter.suspect else None
        entry.away_at = entry.away_at or (noted.at if noted is not None else None) or self._clock()
        if self._clock() - entry.away_at >= timedelta(hours=self._outage_hours):
            return None
        if entry.inbound.key not in self._told:
            # One that is noted may not be stored: the same one again is known by its id.
            with self._telling(entry, entry.model):
                await self._notices.tell(session, entry.inbound, reason, said)
        wait = back_off_s(entry.tries.waits, after_s=error.after_s, spread=random.random())
        log.debug("model.said", error=str(error))
        log.warning(
            "model.away", cause=error.cause, error=loggable(error), hint=error.hint, wait_s=round(wait, 2)
        )
        return RetryAfter(wait, over)

    async def delay(self, entry: Entry, error: MailboxError | StoreError) -> RetryAfter:
        """Keep the lane waiting for queue or disk; of the disk its chat is told once."""
        entry.tries.waits += 1
        entry.held = str(error) if isinstance(error, StoreError) else ""
        wait = back_off_s(entry.tries.waits, spread=random.random())
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

    def fenced(self, entry: Entry, error: Fenced) -> RetryAfter | None:
        """Let go of a letter that another daemon has by now; for one of ours claim its key again, ever later.

        A key that can never be claimed would hold up its lane: after ``fenced_tries`` the letter is parked.
        """
        if entry.letter.lost:
            log.info("turn.fenced", let_go=True)
            return None
        entry.tries.fenced += 1
        wait_s = fenced_off_s(entry.tries.fenced)
        log.info("turn.fenced", tries=entry.tries.fenced, error=str(error), wait_s=round(wait_s, 2))
        if entry.tries.fenced >= self._fenced_tries:
            entry.verdict = park_verdict(error)
            return RetryAfter(fenced_off_s(1))
        return RetryAfter(wait_s)

    def model_answers(self, model: Model) -> None:
        """Note that a call succeeded; every lane that waits for this model goes on."""
        self._of(model).ended()
        self._told = {key: away for key, away in self._told.items() if away is not model}

    async def _tell_waiting(self, error: ModelAway, model: Model | None, over: asyncio.Event) -> None:
        """Until the outage is ``over``, tell the chats whose letters wait without a try of their own."""
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

    async def _tell(self, entry: Entry, error: ModelAway, model: Model | None) -> None:
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
    def _telling(self, entry: Entry, model: Model | None) -> Iterator[None]:
        """Take a chat for told while it is; refused by queue or disk, it is told at the next try or look."""
        # Noted first: a try of the letter itself may meet the outage meanwhile, and would tell it, too.
        key = entry.inbound.key
        self._told[key] = model
        try:
            yield
        # What nobody foresaw is not tried again: it would count as an attempt at the letter each time.
        except (MailboxError, SessionError, asyncio.CancelledError):
            self._told.pop(key, None)
            raise
