"""Ends the letters of a chat that has too many waiting, beside its lane, so that each frees its place.

What a daemon holds of its queue is bounded: one chat that fills it would keep all others waiting. The
newest letters are refused, so that those before them keep their order. Each is known to have ended before
it is gone from its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice, takewhile

import structlog

from channels.message import Inbound
from durable import first_of
from gateway.errors import LetterLost, MailboxError
from gateway.queue.mailbox import Letter
from gateway.queue.retry import back_off_s
from gateway.turns import outcomes
from gateway.turns.events import Spawn
from gateway.turns.lanes import Entry, RetryAfter
from gateway.turns.orders import Orders
from gateway.turns.policy import UNANSWERED, Verdict
from session.errors import SessionError
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.turn.turn import Reply

log = structlog.get_logger("flood")

REASON = "flood"
SAID = (
    "{} messages of this chat are already waiting. Until some of them are answered, "
    "new messages are rejected, including this one."
)
CRASHES_MAX = 3
# With those that led to the parking.
PARK_CRASHES_MAX = 5
# How many of a chat end in one write of its journal.
BATCH_MAX = 500


class Refusals:
    """The letters that are being refused, by key, oldest first.

    Args:
        limit: how many letters of a chat may wait.
        send: settles a letter with its reply.
        park: sets one aside that raises whatever is done to it.
    """

    def __init__(
        self,
        limit: int,
        *,
        store: Store,
        orders: Orders,
        send: Callable[[Entry, Reply], Awaitable[RetryAfter | None]],
        park: Callable[[Entry, Session | None, Verdict], Awaitable[None]],
        spawn: Spawn,
    ) -> None:
        self._limit = limit
        self._store = store
        self._orders = orders
        self._send = send
        self._park = park
        self._spawn = spawn
        self._queues: dict[str, dict[str, Entry]] = {}
        self._telling: set[tuple[str, str]] = set()
        self._closing = asyncio.Event()

    def meets(self, inbound: Inbound, waiting: int) -> bool:
        """Say whether a further letter is refused, where that many of its chat wait.

        While earlier ones are still being refused it is: after a crash they might run, and behind this one.
        Those that are lost come again, behind this one, unless it is one of them.
        """
        queue = self._queues.get(inbound.key, {})
        if waiting >= self._limit or inbound.id in queue:
            return True
        return any(not entry.letter.lost for entry in queue.values())

    def tells(self, key: str) -> bool:
        """Say whether one of those that are being refused tells its chat."""
        return any(told == key for told, _ in self._telling)

    def add(self, inbound: Inbound, letter: Letter, *, tell: bool) -> None:
        """Refuse a letter; one that comes again only gets a further acknowledgement."""
        queue = self._queues.get(inbound.key)
        if queue is None:
            queue = self._queues[inbound.key] = {}
            self._spawn(self._serve(inbound.key, queue), f"refuse {inbound.key}")
        if (entry := queue.get(inbound.id)) is not None:
            entry.come_again(letter)
            return
        queue[inbound.id] = Entry(inbound, letter, asyncio.get_running_loop().time())
        if tell:
            self._telling.add((inbound.key, inbound.id))

    def close(self) -> None:
        """Begin no further one; what is not refused yet comes again."""
        self._closing.set()

    async def _serve(self, key: str, queue: dict[str, Entry]) -> None:
        try:
            while queue and not self._closing.is_set():
                entries = self._batch(queue)
                ended = await self._try(key, entries)
                for entry in ended:
                    del queue[entry.inbound.id]
                    self._telling.discard((key, entry.inbound.id))
                    for letter in entry.left():
                        self.add(entry.inbound, letter, tell=False)
                if len(ended) < len(entries):
                    after_s = back_off_s(max(entry.tries.waits for entry in entries))
                    await first_of(self._closing.wait(), timeout_s=after_s)
        finally:
            for message_id in queue:
                self._telling.discard((key, message_id))
            self._queues.pop(key, None)

    def _batch(self, queue: dict[str, Entry]) -> list[Entry]:
        """Return the oldest ones as far as they end in silence together, else the oldest one."""
        together = list(islice(takewhile(self._is_silent, queue.values()), BATCH_MAX))
        return together or [next(iter(queue.values()))]

    def _is_silent(self, entry: Entry) -> bool:
        inbound = entry.inbound
        told = (inbound.key, inbound.id) in self._telling
        return not told and not entry.tries.crashes and outcomes.command(inbound) is None

    async def _try(self, key: str, entries: list[Entry]) -> list[Entry]:
        """Do one try; return those that ended, the others must be tried again."""
        # One that is lost comes again.
        mine = [entry for entry in entries if not entry.letter.lost]
        ended = [entry for entry in entries if entry not in mine]
        for entry in mine:
            entry.begun_at = asyncio.get_running_loop().time()
        try:
            if len(mine) == 1 and mine[0].tries.crashes >= CRASHES_MAX:
                return ended + await self._parked(mine[0])
            async with self._store.open(SessionKey(key)) as session:
                replies = await self._outcomes(session, mine)
        except LetterLost:
            # Their connection is gone and they come again; what they ended in is in the journal.
            return ended + [entry for entry in mine if entry.letter.lost]
        except (MailboxError, SessionError) as error:
            _delay(mine, error)
            return ended
        except Exception:
            # One try ends here. What nobody foresaw may be one letter's: each is tried alone from now on.
            log.exception("refusal.crashed", key=key, ids=[entry.inbound.id for entry in mine])
            _crash(mine)
            return ended
        settled = await asyncio.gather(*(self._settled(*each) for each in zip(mine, replies, strict=True)))
        return ended + [entry for entry, done in zip(mine, settled, strict=True) if done]

    async def _settled(self, entry: Entry, reply: Reply) -> bool:
        try:
            again = await self._send(entry, reply)
        except LetterLost:
            # The reply is durable. Without a newer delivery the letter comes again and repeats it.
            return entry.letter.lost
        except (MailboxError, SessionError) as error:
            _delay([entry], error)
            return False
        except Exception:
            # One letter ends here.
            log.exception("refusal.crashed", key=entry.inbound.key, ids=[entry.inbound.id])
            _crash([entry])
            return False
        # Lost and come again meanwhile, it must be acknowledged, too.
        return again is None and entry.letter is entry.settled

    async def _parked(self, entry: Entry) -> list[Entry]:
        """Park one that crashed again and again; where that crashes, too, leave it to the next start."""
        verdict = Verdict("failed", UNANSWERED, "refusing it failed")
        try:
            await self._park(entry, None, verdict)
        except (MailboxError, SessionError):
            raise
        except Exception:
            if entry.tries.crashes + 1 < PARK_CRASHES_MAX:
                raise
            # It is not acknowledged, so that it comes again; whatever follows it here goes on.
            log.exception("letter.left", key=entry.inbound.key, id=entry.inbound.id)
        return [entry]

    async def _outcomes(self, session: Session, entries: list[Entry]) -> list[Reply]:
        """Say what each ended in; the silent ones are known to have in one write."""
        if len(entries) == 1:
            return [await self._outcome(session, entries[0].inbound)]
        stored = [outcomes.stored(session, entry.inbound) for entry in entries]
        fresh = [entry.inbound.id for entry, known in zip(entries, stored, strict=True) if known is None]
        text = SAID.format(self._limit)
        if fresh:
            await session.journal.silence(fresh, text=text, reason=REASON)
            log.info("letters.refused", key=str(session.key), count=len(fresh), reason=REASON)
        return [known or Reply(text, reason=REASON, silent=True) for known in stored]

    async def _outcome(self, session: Session, inbound: Inbound) -> Reply:
        """Say what the letter ended in: what is stored of it, else that it was refused."""
        # Asked first: what was answered beside the lane is stored, too, and would be sent a second time.
        if await self._orders.answered(inbound, outcomes.command(inbound)):
            return Reply(silent=True)
        if (stored := outcomes.stored(session, inbound)) is not None:
            return stored
        text = SAID.format(self._limit)
        log.info("letter.refused", key=inbound.key, id=inbound.id, reason=REASON)
        if (inbound.key, inbound.id) not in self._telling:
            await session.journal.conclude(inbound.id, "silent", text=text, reason=REASON)
            return Reply(text, reason=REASON, silent=True)
        known = await session.journal.conclude(inbound.id, "notice", text=text, reason=REASON)
        return Reply(known.text, kind="notice", reason=REASON, seq=known.seq or 0)


def _delay(entries: list[Entry], error: MailboxError | SessionError) -> None:
    for entry in entries:
        entry.tries.waits += 1
    log.warning("refusal.delayed", key=entries[0].inbound.key, error=str(error), hint=error.hint)


def _crash(entries: list[Entry]) -> None:
    for entry in entries:
        entry.tries.waits += 1
        entry.tries.crashes += 1
