"""Sets a letter aside that will never be answered: its chat is told, and the operator can see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from channels.message import Inbound, times
from gateway.queue.mailbox import Mailbox, ParkedAs
from gateway.turns.jobs import Jobs
from gateway.turns.lanes import Entry
from gateway.turns.notices import Notices
from gateway.turns.policy import UNANSWERED, Verdict
from gateway.turns.settlement import Settlement
from session.store.store import Session
from session.turn.joining import served, set_aside

log = structlog.get_logger("worker")

# How often parking may end in an error that nobody foresaw.
CRASHES_MAX = 4
# What the message itself may be the cause of, and of every later request's failure that holds it.
POISON: Final = frozenset({"refused", "attempts", "failed"})
LEFT_SAID = "This message was not answered, because one that arrived meanwhile failed. Send it again."


class Parking:
    """Moves letters to the parked ones.

    Args:
        jobs: says what is told of those that the clock sent; None: the same as of all others.
        settlement: hears of each, and tells who waits for one that is not parked but fails, a subagent's.
        now: the timestamp of a line that is written now.
        attempts: how often a turn may break, and ``fenced_tries`` a conversation be replaced.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        notices: Notices,
        jobs: Jobs | None,
        settlement: Settlement,
        now: Callable[[], str],
        attempts: int,
        fenced_tries: int,
    ) -> None:
        self._attempts, self._fenced_tries = attempts, fenced_tries
        self._mailbox = mailbox
        self._notices = notices
        self._jobs = jobs
        self._settlement = settlement
        self._now = now

    def crashed(self, entry: Entry, error: Exception) -> bool:
        """Count an error that nobody foresaw; say whether its letter stays in its queue, to come much later.

        One that breaks again and again before its turn is to be parked. Where that breaks as well, its lane
        goes on. The letter is not acknowledged, so that it is tried again at the next start.
        """
        entry.tries.waits += 1
        entry.tries.crashes += 1
        # A turn that broke so often is parked with words of its own, before this.
        if entry.verdict is None and entry.tries.crashes > self._attempts:
            entry.verdict = Verdict("failed", UNANSWERED, type(error).__name__)
        if entry.tries.parkings < CRASHES_MAX or entry.tries.crashes < CRASHES_MAX:
            return False
        log.error("letter.left", key=entry.inbound.key, id=entry.inbound.id, tries=entry.tries.parkings)
        return True

    def is_shut(self, entry: Entry) -> bool:
        """Say whether the conversation changes all the time, or cannot be opened: no journal is written."""
        return entry.tries.fenced >= self._fenced_tries or entry.tries.crashes > self._attempts + 1

    async def park(self, entry: Entry, session: Session | None, verdict: Verdict) -> None:
        """Tell the chat, move the letter aside, and remember in between that it is parked.

        A turn that its message may have spoilt is left out of what follows.

        Without a session, where its key is shut, the journal notes neither.

        Raises:
            MailboxDown, Fenced, StoreError: call it again.
            LetterLost: it is parked, and comes again all the same.
        """
        inbound, letter, reason = entry.inbound, entry.letter, verdict.reason
        if await self._settlement.failed(entry, verdict):
            return
        # Whoever puts the letter back waits for this: its mark in the journal must not come after that.
        entry.verdict, entry.parking = verdict, asyncio.Event()
        entry.tries.parkings += 1
        journal = session.journal if session is not None else None

        async def mark() -> None:
            assert journal is not None
            passed = times(inbound, entry.queued_at)
            await journal.conclude(inbound.id, "parked", reason=reason, **passed)

        tries = entry.tries
        attempts = max(journal.attempts(inbound.id) if journal else 0, tries.crashes, tries.counted, 1)
        try:
            said = verdict.said if self._jobs is None else await self._jobs.said(inbound, verdict.said)
            if said is not None and session is not None:
                await self._notices.tell(session, inbound, reason, said)
            elif said is not None:
                await self._notices.put(inbound, reason, said)
            if session is not None:
                await self._left(session, inbound, reason)
            await self._mailbox.park(
                letter,
                ParkedAs(inbound.key, verdict.shown, attempts),
                mark=mark if journal is not None else None,
            )
            entry.settled = letter
        finally:
            entry.parking.set()
        log.warning("letter.parked", reason=reason, attempts=attempts)
        self._settlement.ended(entry, reason)

    async def _left(self, session: Session, inbound: Inbound, reason: str) -> None:
        """Tell those whose turns were stopped for this one, and would have been answered with it."""
        for line in served(session, inbound.id):
            if line["message_id"] != inbound.id and line.get("part_of") != inbound.id:
                await self._notices.tell(session, _of(line, inbound), reason, LEFT_SAID)
                await session.journal.conclude(line["message_id"], "notice", reason=reason, text=LEFT_SAID)
        if reason in POISON:
            await set_aside(session, inbound.id, self._now())


def _of(line: Mapping[str, Any], later: Inbound) -> Inbound:
    """Return the message of a stored line, as far as a notice needs it."""
    platform_id = line.get("platform_id")
    return later.model_copy(
        update={
            "id": line["message_id"],
            "platform_id": platform_id if isinstance(platform_id, str) else None,
            "reply_to": None,
        }
    )
