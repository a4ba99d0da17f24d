"""The end of a message: its reply is durable before its delivery is gone, or it is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import structlog

import durable
from channels.errors import Unreadable
from channels.message import PROMISED, Inbound, times
from durable import BoundedDict, first_of
from gateway.dispatch import messages, replies
from gateway.dispatch.context import Ending, MessageContext
from gateway.dispatch.deduplication import CLEARED
from gateway.dispatch.events import EventKind, Events
from gateway.dispatch.jobs import HandedOn, Jobs
from gateway.dispatch.lanes import SOON_S, PendingMessage, RetryAfter
from gateway.dispatch.policy import UNANSWERED, Verdict
from gateway.dispatch.replies import Notices
from gateway.dispatch.subagents import Subagents
from gateway.errors import LetterLost
from gateway.observer import NOTHING, Observer, TurnEnded
from gateway.queue.mailbox import Behind, Letter, Mailbox, ParkedAs, Post
from gateway.queue.retry import back_off_s, until_durable
from session.context.request import QUIET
from session.store.store import Session
from session.transcript.attachments import Attachment
from session.transcript.key import SUBAGENTS
from session.turn import commands
from session.turn.joining import served, set_aside
from session.turn.turn import TOGETHER, Reply, Request

log = structlog.get_logger("worker")

Enclosures = Callable[[Session, Request, str], Awaitable[Sequence[Attachment]]]
LetterEnded = Callable[[Inbound, Literal["ok", "error"], str, int], None]

REMEMBERED_MAX = 10_000
TOGETHER_SAID = "This message is answered together with another one."


# How often parking may end in an error that nobody foresaw.
CRASHES_MAX = 4
# What the message itself may be the cause of, and of every later request's failure that holds it.
POISON: Final = frozenset({"refused", "attempts", "failed"})
LEFT_SAID = "This message was not answered, because one that arrived meanwhile failed. Send it again."
# After so many errors that nobody foresaw the chat is told nothing: its address may be what breaks.
TELL_CRASHES_MAX = 2
# After so many a message that cannot be read is left in its queue.
UNREADABLE_CRASHES_MAX = 5


class Completion:
    """Makes durable what the steps decided: sends, parks or hands on a message, and lets go of its delivery.

    Args:
        letter_ended: hears of each message how it ended, with its milliseconds from the first try on.
        enclosures: finds the files that go out with an answer; None: there are none.
        jobs: says what is told of messages that the clock sent; None: the same as of all others.
        subagents: what their messages end in; None: there are none.
        now: the timestamp of a line that is written now.
        attempts: how often a turn may break, and ``fenced_tries`` a conversation be replaced.
        observer: hears of each message that has ended, with what its turn took.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        events: Events,
        notices: Notices,
        letter_ended: LetterEnded,
        clock: Callable[[], datetime],
        enclosures: Enclosures | None,
        jobs: Jobs | None,
        subagents: Subagents | None,
        now: Callable[[], str],
        attempts: int,
        fenced_tries: int,
        observer: Observer,
    ) -> None:
        self._mailbox, self._events, self._notices = mailbox, events, notices
        self._letter_ended, self._observer = letter_ended, observer
        self._enclosures, self._jobs, self._subagents = enclosures, jobs, subagents
        self._clock, self._now = clock, now
        self._attempts, self._fenced_tries = attempts, fenced_tries
        # Messages that ended and are not acknowledged yet, and whether they are parked; those that were
        # replied to and are acknowledged, as far as we know.
        self._owed: BoundedDict[tuple[str, str], bool] = BoundedDict(REMEMBERED_MAX)
        self._replied: BoundedDict[tuple[str, str], None] = BoundedDict(REMEMBERED_MAX)

    async def end(self, message: MessageContext, ending: Ending) -> RetryAfter | None:
        """Send, park or hand on the message; None when it has ended.

        Raises:
            LetterLost: it has ended, and comes again all the same.
            MailboxError, SessionError: call it again.
        """
        entry, session = message.entry, message.session
        inbound = entry.inbound
        match ending:
            case RetryAfter():
                return ending
            case Verdict():
                await self.park(entry, session, ending)
                return None
            case HandedOn():
                return await self._hand_on(entry, ending)
            case Reply() as reply:
                if self._enclosures is not None and messages.may_enclose(inbound, reply):
                    files = await self._enclosures(session, messages.request(inbound), reply.text)
                    reply = messages.with_files(reply, files)
                if self._jobs is not None and inbound.source == "cron":
                    reply = await self._jobs.settled(inbound, reply)
                return await self.send(entry, reply, behind=session.ahead)

    async def acknowledged_again(self, entry: PendingMessage) -> bool:
        """Acknowledge a message that has ended here and came again; False if it is another one."""
        letter, name = entry.letter, (entry.inbound.key, entry.inbound.id)
        # A message that is published again is answered again: only a delivery that comes again is let go.
        if not letter.suspect or not (self._is_owed(entry, name) or name in self._replied):
            self._owed.pop(name, None)
            return False
        await self._mailbox.settle(letter)
        entry.settled = letter
        self._owed.pop(name, None)
        return True

    def _is_owed(self, entry: PendingMessage, name: tuple[str, str]) -> bool:
        # Another daemon may have let go of a parked one, and a person put it back: the journal knows that.
        return name in self._owed and (entry.parking is not None or not self._owed[name])

    def lost(self, entry: PendingMessage) -> RetryAfter | None:
        """Remember a message that was lost when it ended; None until it comes again."""
        self._owed[entry.inbound.key, entry.inbound.id] = entry.parking is not None
        # If it has come again meanwhile, that delivery is the one to let go of.
        return None if entry.letter.lost else RetryAfter(SOON_S)

    async def send(
        self, entry: PendingMessage, reply: Reply, *, behind: Behind | None = None
    ) -> RetryAfter | None:
        """Put the reply and acknowledge the delivery, both or neither; ``behind`` is durable before.

        Raises:
            LetterLost: both are done, and the message comes again all the same.
            MailboxDown: neither is; call it again.
        """
        if entry.letter.lost:
            # It comes again, perhaps by then, and the stored reply is sent.
            return RetryAfter(SOON_S)
        inbound = entry.inbound
        if self._subagents is not None and inbound.channel == SUBAGENTS:
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

    async def _hand_on(self, entry: PendingMessage, to: HandedOn) -> RetryAfter | None:
        """Put a message into the lane in which its turn is to run and acknowledge it here, both or neither.

        Raises:
            LetterLost, MailboxDown: as ``send``.
        """
        if entry.letter.lost:
            return RetryAfter(SOON_S)
        await self._mailbox.settle(entry.letter, [to.post])
        entry.settled = entry.letter
        log.info("letter.handed_on", to=to.letter.key)
        return None

    async def _end_in_silence(self, entry: PendingMessage, reply: Reply, behind: Behind | None) -> None:
        inbound, together = entry.inbound, reply.reason == TOGETHER
        # Nobody waits for what a job has to say, and a chat that was told once is not told again.
        tells = reply.reason not in ("", QUIET) and reply.kind != "notice"
        # All messages of the conversation are known as cleared, those that were answered before among them.
        if reply.reason == CLEARED:
            tells = entry.stop.pulled or entry.tries.fenced > 0
        text = reply.text or (TOGETHER_SAID if together else commands.STOPPED)
        posts: list[Post] = []
        if tells and inbound.meta.get(PROMISED) is True:
            posts.append(replies.notice(inbound, reply.reason, text, self._clock()))
        no_error = reply.reason in (TOGETHER, QUIET, CLEARED)
        await self._settle(entry, posts, reply, error="" if no_error else reply.reason, behind=behind)
        if tells:
            event_id = f"{inbound.id}#notice.{reply.reason}"
            await self._events.tell("notice", inbound.key, inbound.id, text=text, event_id=event_id)

    async def _failed(self, entry: PendingMessage, verdict: Verdict) -> bool:
        """Let a subagent's message that fails for good end in a result that says so; False: it is none.

        Raises:
            LetterLost, MailboxDown, StoreError: as ``send``.
        """
        if self._subagents is None or entry.inbound.channel != SUBAGENTS:
            return False
        entry.verdict = verdict
        entry.tries.parkings += 1
        await self.send(entry, Reply(verdict.said, kind="notice", reason=verdict.reason))
        return True

    def _ended(
        self,
        entry: PendingMessage,
        error: str,
        result: str = "parked",
        put_s: float = 0.0,
        *,
        reply: Reply | None = None,
    ) -> None:
        """Report how a message ended to all that count it; ``error`` is the class of its reason.

        ``reply`` is what it ended in: then it gets its one line in the log; a parked one has its own.
        """
        took_s = asyncio.get_running_loop().time() - entry.begun_at
        waited_s = _waited_s(entry, took_s)
        if reply is not None:
            _tell(entry, reply, result, waited_s, took_s)
        try:
            self._letter_ended(entry.inbound, "error" if error else "ok", error, round(took_s * 1000))
        except Exception:
            # What they do with it must not bring the message back.
            log.exception("letter_ended.crashed")
        headers = entry.letter.headers
        self._observer.turn_ended(
            TurnEnded(entry.inbound, result, error, waited_s, took_s, entry.figures, put_s, headers)
        )

    async def _settle(
        self,
        entry: PendingMessage,
        posts: Sequence[Post],
        reply: Reply,
        *,
        error: str,
        behind: Behind | None = None,
    ) -> None:
        letter, began = entry.letter, durable.monotonic()
        result = "silent" if reply.silent else reply.kind
        try:
            await self._mailbox.settle(letter, posts, behind=behind)
        except LetterLost:
            # The reply is durable, so that the message has ended: its next delivery is only acknowledged.
            self._ended(entry, error, result)
            raise
        entry.settled = letter
        self._ended(entry, error, result, durable.monotonic() - began, reply=reply)

    def crashed(self, entry: PendingMessage, error: Exception) -> bool:
        """Count an error that nobody foresaw; say whether its message stays in its queue, to come much later.

        One that breaks again and again before its turn is to be parked. Where that breaks as well, its lane
        goes on. The message is not acknowledged, so that it is tried again at the next start.
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

    def is_shut(self, entry: PendingMessage) -> bool:
        """Say whether the conversation changes all the time, or cannot be opened: no journal is written."""
        return entry.tries.fenced >= self._fenced_tries or entry.tries.crashes > self._attempts + 1

    async def park(self, entry: PendingMessage, session: Session | None, verdict: Verdict) -> None:
        """Notify the chat, park the message, and note in between that it is parked.

        A turn that its message may have spoilt is left out of what follows.

        Without a session, where its key is shut, the journal notes neither.

        Raises:
            MailboxDown, Fenced, StoreError: call it again.
            LetterLost: it is parked, and comes again all the same.
        """
        inbound, letter, reason = entry.inbound, entry.letter, verdict.reason
        if await self._failed(entry, verdict):
            return
        # An operator who puts it back waits for this: its mark in the journal must not come after that.
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
                await self._tell_left(session, inbound, reason)
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

    async def _tell_left(self, session: Session, inbound: Inbound, reason: str) -> None:
        """Tell those whose turns were stopped for this one, and would have been answered with it."""
        for line in served(session, inbound.id):
            if line["message_id"] != inbound.id and line.get("part_of") != inbound.id:
                await self._notices.tell(session, _of(line, inbound), reason, LEFT_SAID)
                await session.journal.conclude(line["message_id"], "notice", reason=reason, text=LEFT_SAID)
        if reason in POISON:
            await set_aside(session, inbound.id, self._now())


def _tell(entry: PendingMessage, reply: Reply, result: str, waited_s: float | None, took_s: float) -> None:
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


def _waited_s(entry: PendingMessage, took_s: float) -> float | None:
    """Return the seconds from the acceptance of a message to its first try; None where nobody noted that."""
    if not entry.inbound.received_at:
        return None
    try:
        accepted_s = datetime.fromisoformat(entry.inbound.received_at).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(durable.wall_s() - accepted_s - took_s, 0.0)


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


async def park_unreadable(
    letter: Letter,
    error: Unreadable,
    *,
    mailbox: Mailbox,
    notices: Notices,
    closing: asyncio.Event,
    sleep: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
) -> None:
    """Notify the chat and park the delivery, however long the broker is away.

    What fails in a way that nobody foresaw is tried again, at last without the notice. A message that cannot
    be parked even then is not acknowledged: it comes again when its queue is opened the next time, and so
    does one that is not parked when ``closing`` is set.
    """
    crashes = 0

    async def pause(after_s: float) -> None:
        await first_of(closing.wait(), sleep(after_s))

    async def once() -> None:
        if closing.is_set() or letter.lost:
            return
        address = error.address
        if address is not None and crashes < TELL_CRASHES_MAX:
            await notices.put(address, "unreadable", f"This message cannot be read: {error}.")
        key = address.key if address else None
        await mailbox.park(letter, ParkedAs(key, f"unreadable: {error}", 0))
        log.warning("letter.parked", id=letter.id, reason="unreadable", error=str(error))

    while True:
        try:
            await until_durable(once, pause=pause)
        except LetterLost:
            # It comes again, and is parked then.
            return
        except Exception:
            # One message ends here: nobody but this loop tries it again in this process.
            crashes += 1
            log.exception("parking.crashed", id=letter.id, tries=crashes)
        else:
            return
        if crashes >= UNREADABLE_CRASHES_MAX:
            log.error("letter.left", id=letter.id, tries=crashes)
            return
        await pause(back_off_s(crashes))
