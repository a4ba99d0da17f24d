"""Commands answered out of line: at once, before the letter's own turn comes, and exactly once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from channels.message import Inbound, times
from durable import BoundedDict
from gateway.errors import MailboxError
from gateway.queue.mailbox import Mailbox
from gateway.turns import replies
from gateway.turns.events import Spawn
from session.errors import SessionError
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.turn.turn import Reply

log = structlog.get_logger("aside")

REMEMBERED_MAX = 1000
# With the answer of a ``/stop`` in the journal: the id of the message whose turn it ended.
STOPS = "stops"
Words = Callable[[Session], Awaitable[str]]


class Aside:
    """Answers beside the lanes, and remembers for the letter's turn that it was done."""

    def __init__(
        self,
        *,
        store: Store,
        mailbox: Mailbox,
        clock: Callable[[], datetime],
        spawn: Spawn,
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._clock = clock
        self._spawn = spawn
        # Whether the reply is durable; bounded, since the letter may never come to this daemon.
        self._answers: BoundedDict[tuple[str, str], asyncio.Future[bool]] = BoundedDict(REMEMBERED_MAX)
        self._past: deque[tuple[str, str]] = deque(maxlen=REMEMBERED_MAX)

    def is_past(self, key: str, message_id: str) -> bool:
        """Say whether the letter's own turn has been: what comes out of line now comes too late."""
        return (key, message_id) in self._past

    async def is_answered(self, inbound: Inbound) -> bool:
        """Say whether the journal knows an answer; yes, too, where it cannot be read: its turn meets that."""
        try:
            async with self._store.open(SessionKey(inbound.key)) as session:
                return session.journal.known(inbound.id) is not None
        except SessionError as error:
            log.warning("aside.unanswered", key=inbound.key, id=inbound.id, error=str(error))
            return True

    def stopped_by(self, key: str, message_id: str) -> str | None:
        """Return the message whose turn a ``/stop`` ended; None where it is not known to have."""
        view = self._store.look_here(SessionKey(key))
        if view is None:
            return None
        known = view.journal.known(message_id)
        # A process that died between the end of the turn and the answer has left the end alone.
        return view.stopped_by(message_id) if known is None else str(known.extra.get(STOPS, ""))

    def answer(self, inbound: Inbound, words: Words, *, stops: str = "") -> None:
        """Answer ``inbound`` with ``words``, unless that is done or under way, or its turn has been.

        ``stops`` is the message whose turn it ended: one that comes again ends no other.
        """
        name = (inbound.key, inbound.id)
        if name in self._answers or name in self._past:
            return
        durable = self._answers[name] = asyncio.get_running_loop().create_future()
        self._spawn(self._put(inbound, words, durable, stops), "answer out of line")

    async def take(self, inbound: Inbound) -> bool:
        """Say, at the turn of the letter, whether its reply is durable; it is past from then on."""
        name = (inbound.key, inbound.id)
        self._past.append(name)
        durable = self._answers.pop(name, None)
        return durable is not None and await durable

    async def _put(self, inbound: Inbound, words: Words, durable: asyncio.Future[bool], stops: str) -> None:
        """Answer now; where that fails, the letter answers when its turn comes."""
        put, of = False, {STOPS: stops} if stops else {}
        try:
            async with self._store.open(SessionKey(inbound.key)) as session:
                # A letter that came again, here or to another daemon, gets the words that it got before.
                known = session.journal.known(inbound.id)
                if known is None:
                    text = await words(session)
                    known = await session.journal.conclude(
                        inbound.id, "command", text=text, once=True, **times(inbound), **of
                    )
                if known.kind != "command":
                    return
                if known.text:
                    reply = Reply(known.text, seq=known.seq or 0)
                    await self._mailbox.put(replies.reply(inbound, reply, self._clock()))
                put = True
        except (MailboxError, SessionError) as error:
            # The letter itself waits in its lane, and is answered there.
            log.warning("aside.unanswered", key=inbound.key, id=inbound.id, error=str(error))
        finally:
            if not durable.done():
                durable.set_result(put)
