"""The end of a message: its reply is durable before its delivery is gone, or it is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import structlog

import durable
from channels.message import PROMISED, Inbound, times
from durable import BoundedDict
from gateway.errors import LetterLost
from gateway.observer import NOTHING, Observer, TurnEnded
from gateway.queue.mailbox import Behind, Mailbox, ParkedAs, Post
from gateway.turns import messages, replies
from gateway.turns.events import EventKind, Events
from gateway.turns.jobs import HandedOn, Jobs
from gateway.turns.lanes import Entry, RetryAfter
from gateway.turns.policy import UNANSWERED, Verdict
from gateway.turns.replies import Notices
from gateway.turns.subagents import Subagents, is_of_subagent
from session.context.quiet import QUIET
from session.store.store import Session
from session.turn import commands
from session.turn.joining import served, set_aside
from session.turn.turn import TOGETHER, Reply

log = structlog.get_logger("worker")


LetterEnded = Callable[[Inbound, Literal["ok", "error"], str, int], None]

REMEMBERED_MAX = 10_000
SOON_S = 0.05
TOGETHER_SAID = "This message is answered together with another one."


class Settlement:
    """Settles letters with their replies.

    Args:
        letter_ended: hears of each letter how it ended, with its milliseconds from the first try on.
        subagents: what their letters end in; None: there are none.
        observer: hears of each letter that has ended, with what its turn took.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        events: Events,
        notices: Notices,
        letter_ended: LetterEnded,
        clock: Callable[[], datetime],
        subagents: Subagents | None = None,
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self._subagents = subagents
        self._observer = observer
        self._mailbox = mailbox
        self._events = events
        self._notices = notices
        self._letter_ended = letter_ended
        self._clock = clock
        # Letters that ended and are not acknowledged yet, and whether they are parked; those that were
        # replied to and are acknowledged, as far as we know.
        self._owed: BoundedDict[tuple[str, str], bool] = BoundedDict(REMEMBERED_MAX)
        self._replied: BoundedDict[tuple[str, str], None] = BoundedDict(REMEMBERED_MAX)

    async def acknowledged_again(self, entry: Entry) -> bool:
        """Let go of a letter that has ended here and came again; False if it is another one."""
        letter, name = entry.letter, (entry.inbound.key, entry.inbound.id)
        # A message that is published again is answered again: only a delivery that comes again is let go.
        if not letter.suspect or not (self._is_owed(entry, name) or name in self._replied):
            self._owed.pop(name, None)
            return False
        await self._mailbox.settle(letter)
        entry.settled = letter
        self._owed.pop(name, None)
        return True

    def _is_owed(self, entry: Entry, name: tuple[str, str]) -> bool:
        # Another daemon may have let go of a parked one, and a person put it back: the journal knows that.
        return name in self._owed and (entry.parking is not None or not self._owed[name])

    def lost(self, entry: Entry) -> RetryAfter | None:
        """Remember a letter that was lost when it ended; None until it comes again."""
        self._owed[entry.inbound.key, entry.inbound.id] = entry.parking is not None
        # If it has come again meanwhile, that delivery is the one to let go of.
        return None if entry.letter.lost else RetryAfter(SOON_S)

    async def send(self, entry: Entry, reply: Reply, *, behind: Behind | None = None) -> RetryAfter | None:
        """Put the reply and let go of the letter, both or neither; ``behind`` what must be durable before.

        Raises:
            LetterLost: both are done, and the letter comes again all the same.
            MailboxDown: neither is; call it again.
        """
        if entry.letter.lost:
            # It comes again, perhaps by then, and the stored reply is sent.
            return RetryAfter(SOON_S)
        inbound = entry.inbound
        if self._subagents is not None and is_of_subagent(inbound):
            post = await self._subagents.result(inbound, reply)
            posts = [] if post is None else [post]
            await self._settle(entry, posts, reply, error=reply.reason, behind=behind)
            await self._subagents.settled(inbound)
            return None
        if reply.silent:
            await self._end_in_silence(entry, reply, behind)
        else:
            post = replies.reply(inbound, reply, self._clock())
            error = reply.reason if reply.kind == "notice" else ""
            await self._settle(entry, [post], reply, error=error, behind=behind)
            # The acknowledgement may yet be lost with its connection.
            self._replied[inbound.key, inbound.id] = None
            kind: EventKind = "notice" if reply.kind == "notice" else "reply"
            await self._notices.show(kind, inbound, post, reply.text, reply.seq)
        if inbound.kind == "result" and self._subagents is not None:
            await self._subagents.settled(inbound)
        return None

    async def hand_on(self, entry: Entry, to: HandedOn) -> RetryAfter | None:
        """Put a letter into the lane in which its turn is to run, and let go of it here, both or neither.

        Raises:
            LetterLost, MailboxDown: as ``send``.
        """
        if entry.letter.lost:
            return RetryAfter(SOON_S)
        await self._mailbox.settle(entry.letter, [to.post])
        entry.settled = entry.letter
        log.info("letter.handed_on", to=to.letter.key)
        return None

    async def _end_in_silence(self, entry: Entry, reply: Reply, behind: Behind | None) -> None:
        inbound, together = entry.inbound, reply.reason == TOGETHER
        # Nobody waits for what a job has to say, and a chat that was told once is not told again.
        tells = reply.reason not in ("", QUIET) and reply.kind != "notice"
        # All messages of the conversation are known as cleared, those that were answered before among them.
        if reply.reason == messages.CLEARED:
            tells = entry.stop.pulled or entry.tries.fenced > 0
        text = reply.text or (TOGETHER_SAID if together else commands.STOPPED)
        posts: list[Post] = []
        if tells and inbound.meta.get(PROMISED) is True:
            posts.append(replies.notice(inbound, reply.reason, text, self._clock()))
        no_error = reply.reason in (TOGETHER, QUIET, messages.CLEARED)
        await self._settle(entry, posts, reply, error="" if no_error else reply.reason, behind=behind)
        if tells:
            event_id = f"{inbound.id}#notice.{reply.reason}"
            await self._events.tell("notice", inbound.key, inbound.id, text=text, event_id=event_id)

    async def failed(self, entry: Entry, verdict: Verdict) -> bool:
        """Let a subagent's letter that fails for good end in a result that says so; False: it is none.

        Raises:
            LetterLost, MailboxDown, StoreError: as ``send``.
        """
        if self._subagents is None or not is_of_subagent(entry.inbound):
            return False
        entry.verdict = verdict
        entry.tries.parkings += 1
        await self.send(entry, Reply(verdict.said, kind="notice", reason=verdict.reason))
        return True

    def ended(
        self,
        entry: Entry,
        error: str,
        result: str = "parked",
        put_s: float = 0.0,
        *,
        reply: Reply | None = None,
    ) -> None:
        """Say how a letter ended to whoever keeps count of it; ``error`` is the class of its reason.

        ``reply`` is what it ended in: then it gets its one line in the log; a parked one has its own.
        """
        took_s = asyncio.get_running_loop().time() - entry.begun_at
        waited_s = _waited_s(entry, took_s)
        if reply is not None:
            _tell(entry, reply, result, waited_s, took_s)
        try:
            self._letter_ended(entry.inbound, "error" if error else "ok", error, round(took_s * 1000))
        except Exception:
            # What they do with it must not bring the letter back.
            log.exception("letter_ended.crashed")
        headers = entry.letter.headers
        self._observer.turn_ended(
            TurnEnded(entry.inbound, result, error, waited_s, took_s, entry.figures, put_s, headers)
        )

    async def _settle(
        self, entry: Entry, posts: Sequence[Post], reply: Reply, *, error: str, behind: Behind | None = None
    ) -> None:
        letter, began = entry.letter, durable.monotonic()
        try:
            await self._mailbox.settle(letter, posts, behind=behind)
        except LetterLost:
            # The reply is durable, so that the letter has ended: its next delivery is only acknowledged.
            self.ended(entry, error, _result(reply))
            raise
        entry.settled = letter
        self.ended(entry, error, _result(reply), durable.monotonic() - began, reply=reply)


def _tell(entry: Entry, reply: Reply, result: str, waited_s: float | None, took_s: float) -> None:
    """Write the one line of a letter: what it ended in, and what that took; what is nothing is left out."""
    figures = entry.figures
    values: dict[str, Any] = {"result": result, "chars": len(reply.text), "took_s": round(took_s, 3)}
    if waited_s is not None:
        values["wait_s"] = round(waited_s, 3)
    if reply.reason:
        values["reason"] = reply.reason
    if reply.repeated:
        values["repeated"] = True
    if figures.tries:
        values |= {"attempt": figures.tries, "calls": figures.calls, "model_s": round(figures.model_s, 3)}
    if (usage := figures.usage) is not NOTHING:
        values |= {**usage.fields(), "cost_usd": usage.shown()["cost_usd"]}
    log.info("turn.replied" if result == "reply" else "turn.ended", **values)


def _result(reply: Reply) -> str:
    return "silent" if reply.silent else reply.kind


def _waited_s(entry: Entry, took_s: float) -> float | None:
    """Return the seconds from the acceptance of a letter to its first try; None where nobody noted that."""
    if not entry.inbound.received_at:
        return None
    try:
        accepted_s = datetime.fromisoformat(entry.inbound.received_at).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(durable.wall_s() - accepted_s - took_s, 0.0)


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
