"""Counts crashes per message, isolates a suspected poison message, parks it after N crashes.

A crash interrupts every turn of a daemon, and one of them at most is to blame. So a message that comes again
runs beside all others once more. Only one that two deaths met runs alone, and only a death alone parks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway.dispatch import messages
from gateway.dispatch.batching import ask_apart
from gateway.dispatch.context import Ending, MessageContext
from gateway.dispatch.lanes import SOON_S, PendingMessage, RetryAfter
from gateway.dispatch.policy import ATTEMPTS_SAID, SUSPECT_DEATHS, Verdict
from gateway.errors import MailboxError
from session.approvals.gate import AwaitsApproval
from session.errors import BadAnswer, Fenced, LineTooLong, ModelAway, RequestTooLarge, StoreError
from session.store.store import Session
from session.turn.joining import parts_of

# Everything that waits for a place is woken; this only bounds the wait should that ever be missed.
LOOK_AGAIN_S = 60.0
_BLAMELESS = (
    *(ModelAway, BadAnswer, RequestTooLarge),
    *(AwaitsApproval, MailboxError, StoreError, asyncio.CancelledError),
)


class CrashGuard:
    """Gives out the places in which turns of messages that came again may run.

    Any number of them runs beside one another, or one suspect without them. Messages that no crash can have
    met take no place: they begin at once, and a suspect does not wait for them.

    Args:
        limit: how often a turn may begin and never end before its message is parked.
        now: the timestamp of a line that is written now.
    """

    def __init__(self, limit: int, *, now: Callable[[], str]) -> None:
        self._limit = limit
        self._now = now
        self._beside = 0
        self._alone = False
        self._beside_free, self._alone_free = asyncio.Event(), asyncio.Event()

    async def take(self, message: MessageContext) -> Ending | None:
        """Return why a message runs no more, or what it waits for."""
        entry, session = message.entry, message.session
        message.attempt = attempt = Attempt(entry, session)
        if not attempt.counted:
            return None
        if attempt.is_spent(self._limit):
            return Verdict("attempts", ATTEMPTS_SAID.format(attempt.begun))
        message.alone = attempt.alone
        if attempt.alone and await ask_apart(entry, session, self._now()):
            return RetryAfter(SOON_S)
        if messages.calls_model(message.command):
            assert message.answers is not None
            # It takes seconds, and a kill in them is no fault of the message's.
            await message.answers.turns.ready(entry.stop)
        # A turn that was stopped while it waited is only closed: nothing of it runs that could do harm. One
        # that waited behind the first message of its lane did not run when a daemon died.
        if entry.stop.pulled or not (attempt.alone or attempt.has_begun):
            return None
        take, leave = (
            (self.take_alone, self.leave_alone) if attempt.alone else (self.take_beside, self.leave_beside)
        )
        if (wait := take()) is None:
            message.leave.callback(leave)
        return wait

    def take_beside(self) -> RetryAfter | None:
        """Take a place beside others; say what to wait for while a suspect runs."""
        if self._alone:
            return RetryAfter(LOOK_AGAIN_S, self._beside_free)
        self._beside += 1
        return None

    def take_alone(self) -> RetryAfter | None:
        """Take the place of the one suspect; say what to wait for while any other place is taken."""
        if self._alone or self._beside:
            return RetryAfter(LOOK_AGAIN_S, self._alone_free)
        self._alone = True
        return None

    def leave_beside(self) -> None:
        """Give a place back; when it was the last one, a suspect may run."""
        self._beside -= 1
        self._wake()

    def leave_alone(self) -> None:
        """Give the place of the suspect back."""
        self._alone = False
        self._wake()

    def _wake(self) -> None:
        # Those who may run side by side are woken first: they must not wait for one suspect after the other.
        beside, self._beside_free = self._beside_free, asyncio.Event()
        beside.set()
        if not self._beside:
            alone, self._alone_free = self._alone_free, asyncio.Event()
            alone.set()


class Attempt:
    """One try of a message's turn. ``async with`` it begins the turn and counts it.

    A turn that ends in an outage of model, queue or disk, or in an answer of no use, waits for a person, or
    is cancelled, is struck out again. What ended in a death, or in an error that nobody foresaw, stays
    counted.
    """

    def __init__(self, entry: PendingMessage, session: Session) -> None:
        self._entry, self._session, self._tries = entry, session, entry.tries
        recorded = session.journal.attempts(entry.inbound.id)
        # A try that was fenced could not be struck out: its record serves this one.
        self._deaths = recorded - (1 if self._tries.recorded else 0)
        self.counted = entry.letter.suspect or self._tries.crashes > 0 or self._tries.struck
        self.alone = self.counted and self._deaths >= SUSPECT_DEATHS

    @property
    def begun(self) -> int:
        """How often the turn was begun before and never ended."""
        return max(self._deaths, self._tries.crashes)

    @property
    def has_begun(self) -> bool:
        """Whether the turn ran here or may have run when a daemon died."""
        return self._entry.heads or self._deaths > 0 or self._held()

    def is_spent(self, limit: int) -> bool:
        """Say whether it was begun often enough: by its errors, or by deaths of which the last was alone."""
        if self._tries.crashes >= limit:
            return True
        return self._deaths >= limit and self._session.journal.last_alone(self._entry.inbound.id)

    async def __aenter__(self) -> Attempt:
        entry, journal = self._entry, self._session.journal
        if not self.counted or self._tries.recorded or entry.stop.pulled:
            return self
        id_, before = entry.inbound.id, journal.attempts(entry.inbound.id)
        try:
            await journal.begin(
                id_, transcript_held_lines=self._held(), alone=self.alone, parts=self._parts()
            )
        except asyncio.CancelledError:
            # The disk has done its work by now, or never began it.
            if journal.attempts(id_) > before:
                await asyncio.shield(journal.strike(id_, parts=self._parts()))
            raise
        self._tries.recorded = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # This session writes nothing more: the record stays in the journal, and serves the next try.
        if error is None or isinstance(error, Fenced):
            return
        blameless = isinstance(error, _BLAMELESS)
        if blameless and not isinstance(error, LineTooLong):
            # A cancellation in the midst of the record would leave a death that never was.
            await asyncio.shield(self._strike())
        else:
            self._tries.recorded = False

    async def _strike(self) -> None:
        # Of a first start that was not recorded, the line in the transcript would count as one.
        if self._tries.recorded or (not self.counted and self._held()):
            await self._session.journal.strike(self._entry.inbound.id, parts=self._parts())
            self._tries.recorded, self._tries.struck = False, True

    def _parts(self) -> list[str]:
        """Return the ids of other messages in the turn: a death may be the fault of each of them."""
        lines = parts_of(self._session, self._entry.inbound.id) if self._held() else []
        return [str(line["message_id"]) for line in lines]

    def _held(self) -> bool:
        exchange = self._session.find(self._entry.inbound.id)
        return exchange is not None and exchange.tail
