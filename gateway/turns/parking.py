"""Sets a letter aside that will never be answered: its chat is told, and the operator can see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from channels.message import times
from gateway.queue.mailbox import Mailbox, ParkedAs
from gateway.turns.jobs import Jobs
from gateway.turns.lanes import Entry
from gateway.turns.notices import Notices
from gateway.turns.policy import Verdict
from session.store.store import Session

log = structlog.get_logger("worker")

# How often parking may end in an error that nobody foresaw.
CRASHES_MAX = 4


class Parking:
    """Moves letters to the parked ones.

    Args:
        jobs: says what is told of those that the clock sent; None: the same as of all others.
        ended: hears of each, with the class of its reason.
        told: tells who waits for a letter that is not parked but fails (a subagent's); False: it is parked.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        notices: Notices,
        jobs: Jobs | None,
        ended: Callable[[Entry, str], None],
        told: Callable[[Entry, Verdict], Awaitable[bool]] | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._notices = notices
        self._jobs = jobs
        self._ended = ended
        self._told = told

    def is_given_up(self, entry: Entry) -> bool:
        """Say, after an error nobody foresaw, whether a letter stays in its queue, to come again much later.

        Its lane goes on. The letter is not acknowledged, so that it is tried again at the next start.
        """
        if entry.tries.parkings < CRASHES_MAX or entry.tries.crashes < CRASHES_MAX:
            return False
        log.error("letter.left", key=entry.inbound.key, id=entry.inbound.id, tries=entry.tries.parkings)
        return True

    async def park(self, entry: Entry, session: Session | None, verdict: Verdict) -> None:
        """Tell the chat, move the letter aside, and remember in between that it is parked.

        Without a session, since another process owns the key, the journal notes neither.

        Raises:
            MailboxDown, Fenced, StoreError: call it again.
            LetterLost: it is parked, and comes again all the same.
        """
        inbound, letter, reason = entry.inbound, entry.letter, verdict.reason
        if self._told is not None and await self._told(entry, verdict):
            return
        # Whoever puts the letter back waits for this: its mark in the journal must not come after that.
        entry.verdict, entry.parking = verdict, asyncio.Event()
        entry.tries.parkings += 1
        journal = session.journal if session is not None else None

        async def mark() -> None:
            assert journal is not None
            passed = times(inbound, entry.queued_at)
            await journal.conclude(inbound.id, "parked", reason=reason, **passed)

        attempts = max(journal.attempts(inbound.id) if journal else 0, entry.tries.crashes, 1)
        try:
            said = verdict.said if self._jobs is None else await self._jobs.said(inbound, verdict.said)
            if said is not None and session is not None:
                await self._notices.tell(session, inbound, reason, said)
            elif said is not None:
                await self._notices.put(inbound, reason, said)
            await self._mailbox.park(
                letter,
                ParkedAs(inbound.key, verdict.shown, attempts),
                mark=mark if journal is not None else None,
            )
            entry.settled = letter
        finally:
            entry.parking.set()
        log.warning("letter.parked", reason=reason, attempts=attempts)
        self._ended(entry, reason)
