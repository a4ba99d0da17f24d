"""The soft boundary: a message that comes after a long silence begins a session, and its chat is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

import structlog

from gateway.dispatch.context import MessageContext
from gateway.dispatch.replies import Notices
from session.compaction.compactions import apart
from session.store import rollover
from session.store.rollover import is_idle
from session.store.store import Session
from session.transcript.line import FOR_EVER_DAYS, read_time
from session.transcript.transcript import Transcript

log = structlog.get_logger("idle")


REASON = "idle"
MAX_HOURS = 24.0 * FOR_EVER_DAYS
SAID = "This chat was quiet for a while, so a new conversation begins. /resume continues the previous one."


class RollOver:
    """The step that ends a session in which nobody said anything for a number of hours.

    Args:
        hours: how long a chat may be silent; 0: for ever.
        notices: how the chat is told.
        ended: makes the background work for an ended session durable; called with the session that ended it.
        clock: the time now, aware.
    """

    def __init__(
        self,
        hours: float,
        *,
        notices: Notices,
        ended: Callable[[Session], Awaitable[bool]],
        clock: Callable[[], datetime],
    ) -> None:
        self._limit = timedelta(hours=min(hours, MAX_HOURS))
        self._notices = notices
        self._ended = ended
        self._clock = clock

    async def take(self, message: MessageContext) -> None:
        """Draw the boundary before a message that the model is asked; what a crash cut short is finished.

        A message of a cron job draws none, nor does a subagent's result, nor one of which the session holds a
        line.

        Raises:
            Fenced, StoreError, MailboxDown: call it again.
        """
        entry, session, inbound = message.entry, message.session, message.entry.inbound
        if message.command is not None or not self._limit:
            return
        if inbound.source == "cron" or inbound.kind == "result":
            return
        if session.find(inbound.id) is not None:
            return

        def due(transcript: Transcript) -> bool:
            received = read_time(inbound.received_at)
            return is_idle(transcript, received_at=received, now=self._clock(), limit=self._limit)

        # Lines of others may stand behind the newest thing said: many are walked in a thread.
        if await apart(len(session), lambda: due(session.transcript)):
            parted = await session.change(partial(rollover.split_after_idle, by=inbound.id, due=due))
            if parted:
                log.info("session.parted", previous=session.metadata.get("previous_session"))
        # A crash may have come between the boundary and what follows it: that is done here, too.
        if session.metadata.get("parted_by") != inbound.id or len(session) or entry.parted:
            return
        await self._ended(session)
        await self._notices.tell(session, inbound, REASON, SAID)
        entry.parted = True
