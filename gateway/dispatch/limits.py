"""Limits: how many messages of a chat may wait, and what people, chats and jobs may ask in a day."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from typing import Any

import structlog

import durable
from channels.message import Inbound, Sender
from durable import BoundedDict, first_of
from gateway.dispatch import edits, messages
from gateway.dispatch.batching import serves_stopped
from gateway.dispatch.commands import Orders
from gateway.dispatch.completion import Completion
from gateway.dispatch.context import Ending, MessageContext
from gateway.dispatch.deduplication import stored
from gateway.dispatch.events import Spawn
from gateway.dispatch.lanes import Lane, PendingMessage
from gateway.dispatch.policy import UNANSWERED, Verdict
from gateway.dispatch.routing import moved_to
from gateway.dispatch.subagents import Subagents
from gateway.errors import LetterLost, MailboxError
from gateway.queue.mailbox import Letter
from gateway.queue.retry import back_off_s
from session.context.request import Request
from session.context.scopes import Chat, Reader, Scopes, counts_as_group, told
from session.errors import OverCap, SessionError
from session.memory.scope_resolver import remember_chat_kind
from session.models.caps import DAY, HOUR, next_day
from session.models.model import Payer, Usage
from session.models.spending import AGAIN_SAID, SPENT_SAID, Spending
from session.store.store import Session, Store
from session.transcript.key import SUBAGENTS, SessionKey, split
from session.turn.turn import Reply

log = structlog.get_logger("flood")


FLOOD = "flood"
FLOOD_SAID = (
    "{} messages of this chat are already waiting. Until some of them are answered, "
    "new messages are rejected, including this one."
)
CRASHES_MAX = 3
# With those that led to the parking.
PARK_CRASHES_MAX = 5
# How many of a chat end in one write of its journal.
BATCH_MAX = 500


class Flood:
    """Ends the messages of a chat that has too many waiting, beside its lane, so that each frees its place.

    What a daemon holds of its queue is bounded: one chat that fills it would keep all others waiting. The
    newest messages are refused, so that those before them keep their order. Each is known to have ended
    before it is gone from its queue.

    Args:
        limit: how many messages of a chat may wait.
        completion: sends what they end in, or parks one that raises whatever is done to it.
    """

    def __init__(
        self, limit: int, *, store: Store, orders: Orders, completion: Completion, spawn: Spawn
    ) -> None:
        self._limit = limit
        self._store = store
        self._orders = orders
        self._completion = completion
        self._spawn = spawn
        # Those that are being refused, by key, oldest first.
        self._queues: dict[str, dict[str, PendingMessage]] = {}
        self._telling: set[tuple[str, str]] = set()
        self._closing = asyncio.Event()

    def meets(self, inbound: Inbound, lane: Lane | None) -> bool:
        """Say whether a message is refused.

        One that waits already, moves the chat or is a subagent's never is, nor is one that takes another out,
        which would be asked instead. While earlier ones are still being
        refused a further one is: after a crash they might run, and behind this one. Those that are lost come
        again, behind this one, unless it is one of them.
        """
        if inbound.channel == SUBAGENTS or (inbound.kind == "action" and moved_to(inbound) is not None):
            return False
        if lane is not None and (lane.find(inbound.id) is not None or edits.takes_out(lane, inbound)):
            return False
        if lane is not None and len(lane.entries) > self._limit:
            return True
        queue = self._queues.get(inbound.key)
        return queue is not None and (
            inbound.id in queue or any(not entry.letter.lost for entry in queue.values())
        )

    def refuse(self, inbound: Inbound, letter: Letter, lane: Lane | None) -> None:
        """Let a message end beside its lane; an edit, which is answered by nobody, in silence."""
        edit = inbound.kind == "edit"
        told = lane.flooded if lane is not None else any(key == inbound.key for key, _ in self._telling)
        self._add(inbound, letter, tell=not (told or edit))
        if lane is not None and edit:
            edits.replace(lane, inbound)
        elif lane is not None:
            lane.flooded = True

    def _add(self, inbound: Inbound, letter: Letter, *, tell: bool) -> None:
        """Refuse a message; one that comes again only gets a further acknowledgement."""
        queue = self._queues.get(inbound.key)
        if queue is None:
            queue = self._queues[inbound.key] = {}
            self._spawn(self._serve(inbound.key, queue), f"refuse {inbound.key}")
        if (entry := queue.get(inbound.id)) is not None:
            entry.come_again(letter)
            return
        queue[inbound.id] = PendingMessage(inbound, letter, asyncio.get_running_loop().time())
        if tell:
            self._telling.add((inbound.key, inbound.id))

    def close(self) -> None:
        """Begin no further one; what is not refused yet comes again."""
        self._closing.set()

    async def _serve(self, key: str, queue: dict[str, PendingMessage]) -> None:
        try:
            while queue and not self._closing.is_set():
                entries = self._batch(queue)
                ended = await self._try(key, entries)
                for entry in ended:
                    del queue[entry.inbound.id]
                    self._telling.discard((key, entry.inbound.id))
                    for letter in entry.left():
                        self._add(entry.inbound, letter, tell=False)
                if len(ended) < len(entries):
                    after_s = back_off_s(max(entry.tries.waits for entry in entries))
                    await first_of(self._closing.wait(), timeout_s=after_s)
        finally:
            for message_id in queue:
                self._telling.discard((key, message_id))
            self._queues.pop(key, None)

    def _batch(self, queue: dict[str, PendingMessage]) -> list[PendingMessage]:
        """Return the oldest ones as far as they end in silence together, else the oldest one."""
        together = list(islice(takewhile(self._is_silent, queue.values()), BATCH_MAX))
        return together or [next(iter(queue.values()))]

    def _is_silent(self, entry: PendingMessage) -> bool:
        inbound = entry.inbound
        told = (inbound.key, inbound.id) in self._telling
        return not told and not entry.tries.crashes and messages.command(inbound) is None

    async def _try(self, key: str, entries: list[PendingMessage]) -> list[PendingMessage]:
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
            # One try ends here. What nobody foresaw may be one message's: each is tried alone from now on.
            log.exception("refusal.crashed", key=key, ids=[entry.inbound.id for entry in mine])
            _crash(mine)
            return ended
        settled = await asyncio.gather(*(self._settled(*each) for each in zip(mine, replies, strict=True)))
        return ended + [entry for entry, done in zip(mine, settled, strict=True) if done]

    async def _settled(self, entry: PendingMessage, reply: Reply) -> bool:
        try:
            again = await self._completion.send(entry, reply)
        except LetterLost:
            # The reply is durable. Without a newer delivery the message comes again and repeats it.
            return entry.letter.lost
        except (MailboxError, SessionError) as error:
            _delay([entry], error)
            return False
        except Exception:
            # One message ends here.
            log.exception("refusal.crashed", key=entry.inbound.key, ids=[entry.inbound.id])
            _crash([entry])
            return False
        # Lost and come again meanwhile, it must be acknowledged, too.
        return again is None and entry.letter is entry.settled

    async def _parked(self, entry: PendingMessage) -> list[PendingMessage]:
        """Park one that crashed again and again; where that crashes, too, leave it to the next start."""
        verdict = Verdict("failed", UNANSWERED, "refusing it failed")
        try:
            await self._completion.park(entry, None, verdict)
        except (MailboxError, SessionError):
            raise
        except Exception:
            if entry.tries.crashes + 1 < PARK_CRASHES_MAX:
                raise
            # It is not acknowledged, so that it comes again; whatever follows it here goes on.
            log.exception("letter.left", key=entry.inbound.key, id=entry.inbound.id)
        return [entry]

    async def _outcomes(self, session: Session, entries: list[PendingMessage]) -> list[Reply]:
        """Say what each ended in; the silent ones are known to have in one write."""
        if len(entries) == 1:
            return [await self._outcome(session, entries[0].inbound)]
        ended = [stored(session, entry.inbound) for entry in entries]
        fresh = [entry.inbound.id for entry, known in zip(entries, ended, strict=True) if known is None]
        text = FLOOD_SAID.format(self._limit)
        if fresh:
            await session.journal.silence(fresh, text=text, reason=FLOOD)
            log.info("letters.refused", key=str(session.key), count=len(fresh), reason=FLOOD)
        return [known or Reply(text, reason=FLOOD, silent=True) for known in ended]

    async def _outcome(self, session: Session, inbound: Inbound) -> Reply:
        """Say what the message ended in: what is stored of it, else that it was refused."""
        # Asked first: what was answered beside the lane is stored, too, and would be sent a second time.
        command = messages.command(inbound)
        if command is not None and await self._orders.answered(inbound, command):
            return Reply(silent=True)
        if (ended := stored(session, inbound)) is not None:
            return ended
        text = FLOOD_SAID.format(self._limit)
        log.info("letter.refused", key=inbound.key, id=inbound.id, reason=FLOOD)
        if (inbound.key, inbound.id) not in self._telling:
            await session.journal.conclude(inbound.id, "silent", text=text, reason=FLOOD)
            return Reply(text, reason=FLOOD, silent=True)
        known = await session.journal.conclude(inbound.id, "notice", text=text, reason=FLOOD)
        return Reply(known.text, kind="notice", reason=FLOOD, seq=known.seq or 0)


def _delay(entries: list[PendingMessage], error: MailboxError | SessionError) -> None:
    for entry in entries:
        entry.tries.waits += 1
    log.warning("refusal.delayed", key=entries[0].inbound.key, error=str(error), hint=error.hint)


def _crash(entries: list[PendingMessage]) -> None:
    for entry in entries:
        entry.tries.waits += 1
        entry.tries.crashes += 1


REASON = "limit"
TURNS_SAID = (
    "You have reached the hourly message limit ({}). Your messages will be answered again in about {} min."
)
TOO_LITTLE_SAID = "Too little of {} is left for this message. {}"
BROKEN_OFF_SAID = "This answer was stopped, because too little of {} is left to continue. {}"
KNOWN_MAX = 10_000
_WHOLE = {
    "cost_per_day_usd": "today's budget",
    "tokens_per_day": "today's token limit",
    "cost_per_chat_per_day_usd": "today's budget of this chat",
    "cost_per_person_per_day_usd": "your budget for today",
    "cost_per_job_per_day_usd": "today's budget of this job",
}
_SHORT = {
    "cost_per_day_usd": "for all chats",
    "cost_per_chat_per_day_usd": "for this chat",
    "cost_per_person_per_day_usd": "for you",
    "cost_per_job_per_day_usd": "for this job",
}


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that is reached: whose, what the chat is told, and since when it need not be told again."""

    about: str
    text: str
    told_since: datetime


class Quota:
    """The limits on what people may ask, over all their chats.

    Args:
        spending: what may be spent in a day are its own caps.
        turns_per_hour: of one person; 0: any number.
        scopes: name who asks: a person of ``[people]`` by that name in all chats, also in the rows of what
            models cost.
        clock: the time now, aware.
    """

    def __init__(
        self,
        spending: Spending,
        *,
        turns_per_hour: int = 0,
        scopes: Scopes | None = None,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self.spending = spending
        # Whether there is any limit to keep.
        self.limits = bool(turns_per_hour) or spending.limited
        self._turns_per_hour = turns_per_hour
        self._scopes = scopes
        self._clock = clock
        self._running: Counter[str] = Counter()
        # When a message of a chat was last answered: what it was told before that is not true any more.
        self._answered: BoundedDict[str, datetime] = BoundedDict(KNOWN_MAX)

    async def refusal(self, session: Session, payer: Payer, *, turns: bool) -> Reply | None:
        """Return what a message over a limit ends in, already in the journal. None: it may be asked.

        ``turns`` says whether the messages of an hour are counted, too.

        Raises:
            NewerFormat, StoreError, Fenced: nothing was decided.
        """
        over = await self._over(payer, turns=turns)
        return await self._conclude(session, payer, over) if over is not None else None

    async def refused(self, payer: Payer) -> str:
        """Say why a call without a session may not be made; empty: it may."""
        if not self.limits:
            return ""
        over = await self._over(payer, turns=True)
        return over.text if over is not None else ""

    async def is_reached(self, payer: Payer) -> bool:
        """Say whether a further message would be refused."""
        return await self._over(payer, turns=True) is not None

    async def broken_off(self, session: Session, payer: Payer, error: OverCap, *, begun: bool) -> Reply:
        """Return what a message ends in whose next request would go over a cap, already in the journal.

        One whose answer was ``begun`` is told in any case: its chat waits for it.

        Raises:
            StoreError, Fenced: nothing was decided.
        """
        words = BROKEN_OFF_SAID if begun else TOO_LITTLE_SAID
        text = words.format(_WHOLE[error.name], AGAIN_SAID)
        return await self._conclude(session, payer, Over(error.about, text, error.until - DAY), told=begun)

    async def _conclude(self, session: Session, payer: Payer, over: Over, *, told: bool = False) -> Reply:
        """End a message in a notice, in silence where its chat was told since; ``told``: in no case."""
        said = session.journal.said(REASON, over.about)
        since = max(over.told_since, self._answered.get(payer.key, over.told_since))
        if not told and said is not None and said >= since:
            await session.journal.conclude(payer.id, "silent", text=over.text, reason=REASON)
            return Reply(over.text, reason=REASON, silent=True)
        known = await session.journal.conclude(
            payer.id, "notice", text=over.text, reason=REASON, about=over.about
        )
        return Reply(known.text, kind="notice", reason=REASON, seq=known.seq or 0)

    @contextmanager
    def running(self, payer: Payer) -> Iterator[None]:
        """Count a turn of its person while it runs."""
        person = payer.person
        self._running[person] += 1
        try:
            yield
        finally:
            self._running[person] -= 1
            if not self._running[person]:
                del self._running[person]

    def payer(self, inbound: Inbound) -> Payer:
        """Say for whom the requests of a message count: for a person, else the sender, else the chat.

        A group that is listed is others', too: there the sender alone decides.
        """
        sender = inbound.sender.id
        person = f"{inbound.channel}:{sender[:200]}" if sender else inbound.key
        if self._scopes is not None:
            # Only what has a sender knows its chat: the page and the clock do not say whether it is direct.
            direct: Chat | None = "direct" if sender else None
            group = counts_as_group(Reader(inbound.key, "group" if inbound.group else direct))
            listed = None if group else self._scopes.person(inbound.key)
            if listed is None and person != inbound.key:
                listed = self._scopes.person(person)
            person = f"people/{listed}" if listed else person
        return Payer(inbound.key, person, inbound.cron_job_id or "", inbound.id)

    def record(self, payer: Payer, usage: Usage, model: str, *, answered: bool = True) -> None:
        """Count a turn that has ended, and what its requests to ``model`` cost."""
        self.spending.record(payer, usage, model=model)
        if answered and self.spending.limited:
            self._answered[payer.key] = self._clock()

    async def left(self, request: Request) -> list[str]:
        """Say in lines what is left to whoever sent a message."""
        if not self.limits:
            return []
        payer = self.payer(_letter(request))
        lines = [_left_words(row) for row in await self.spending.left(payer)]
        if self._turns_per_hour:
            ends = await self.spending.within_hour(payer.person)
            left = max(self._turns_per_hour - len(ends) - self._running[payer.person], 0)
            lines.append(f"left this hour: {left} of {self._turns_per_hour} messages")
        return lines

    async def _over(self, payer: Payer, *, turns: bool) -> Over | None:
        now, person = self._clock(), payer.person
        cap = await self.spending.reached(payer)
        if cap is not None:
            text = SPENT_SAID.format(_upper(_WHOLE[cap.name]), AGAIN_SAID)
            return Over(cap.about, text, next_day(now) - DAY)
        if not self._turns_per_hour or not turns:
            return None
        ends = await self.spending.within_hour(person)
        if len(ends) + self._running[person] < self._turns_per_hour:
            return None
        free = ends[-self._turns_per_hour] if len(ends) >= self._turns_per_hour else now
        minutes = max(math.ceil((free + HOUR - now).total_seconds() / 60), 1)
        return Over(f"turns {person}", TURNS_SAID.format(self._turns_per_hour, minutes), now - HOUR)


class Admit:
    """The step that holds a message to the limits of its person, its chat and the day.

    It comes behind ``batch``: a message counts for its person from here to its end, or two might pass the
    limit at once.
    """

    def __init__(self, quota: Quota | None, subagents: Subagents | None) -> None:
        self._quota = quota
        self._subagents = subagents

    async def take(self, message: MessageContext) -> Ending | None:
        """Return the refusal."""
        entry, session = message.entry, message.session
        inbound = entry.inbound
        # Whatever it ends in: what its platform says of the chat decides what later messages may see.
        await remember_chat_kind(session, told(inbound.key, inbound.id, group=inbound.group))
        quota = self._quota
        if quota is None or (message.command is not None and not messages.asks_model(message.command)):
            return None
        # For a subagent's turn, and its result's, whoever asked for it pays.
        is_subagents = inbound.kind == "result" or inbound.channel == SUBAGENTS
        pays = self._subagents.payer(inbound) if is_subagents and self._subagents is not None else inbound
        payer = message.payer = quota.payer(pays)
        if not quota.limits:
            return None
        if not entry.admitted and session.find(inbound.id) is None:
            # The message for which a subagent works was counted before, and was within the limit. So was the
            # one whose turn was stopped for this.
            serves = not is_subagents and serves_stopped(inbound, session)
            turns = not is_subagents and not serves
            if (refusal := await quota.refusal(session, payer, turns=turns)) is not None:
                return refusal
            entry.last = serves and await quota.is_reached(payer)
        entry.admitted = True
        message.leave.enter_context(quota.running(payer))
        return None


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _left_words(row: Mapping[str, Any]) -> str:
    """Say what is left of a cap, as ``Spending.left`` shows it."""
    if row["limit"] not in _SHORT:
        return f"left until midnight UTC: {row['left']:,.0f} of {row['of']:,.0f} tokens"
    return f"left until midnight UTC {_SHORT[row['limit']]}: {row['left']:.4f} of {row['of']:.4f} USD"


def _letter(request: Request) -> Inbound:
    """Make of a request as much of a message as says who sent it."""
    channel, chat_id = split(request.key)
    return Inbound(
        v=1,
        id=request.id,
        key=request.key,
        channel=channel,
        chat_id=chat_id,
        text="",
        sender=Sender(id=request.sender.get("id", "")),
        group=request.chat == "group",
        cron_job_id=request.cron_job_id,
    )
