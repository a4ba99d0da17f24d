"""The first hand-over: who may talk and what came along; durable in the queue before its source is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import structlog

import durable
from channels import pairing
from channels.access import (
    LOOKS,
    NOT_MENTIONED,
    RESTRICTED,
    Accept,
    AskCode,
    Ignore,
    LoopGuard,
    Verdict,
    decide,
    group_allowed,
    is_allowed,
)
from channels.base import Arrival, File, Quote
from channels.errors import ChannelError
from channels.media import FileRefused, MediaFolder
from channels.message import Attachment, Inbound, Quoted, Sender, now_text
from channels.tables import Platform
from durable import BoundedDict, plain_value, whole_text
from gateway.dispatch import messages, replies
from gateway.dispatch.control_order import OWN, StatusOrder, StopOrder
from gateway.dispatch.failures import HeldBack
from gateway.errors import GatewayError, MailboxDown
from gateway.queue.mailbox import INBOUND, Mailbox, Post
from gateway.queue.retry import until_durable
from session.transcript.key import slot_of
from session.turn import commands

log = structlog.get_logger("reception")


class Intake:
    """Puts what adapters, HTTP and the terminal accept into the inbound box.

    ``received`` hears of each message before, and returns the headers of its delivery.
    """

    def __init__(
        self, mailbox: Mailbox, *, received: Callable[[Inbound], Mapping[str, str]] = lambda inbound: {}
    ) -> None:
        self._mailbox = mailbox
        self._received = received

    async def accept(self, inbound: Inbound) -> None:
        """Return once the message is durable; a ``/stop`` and a ``/status`` are also told out of line.

        Raises:
            MailboxDown: not confirmed; accept the same message again.
        """
        # An order out of line may reach nobody: what is durable is answered in any case.
        headers = self._received(inbound)
        await self._mailbox.put(Post(INBOUND, inbound.key, inbound.id, inbound.to_bytes(), headers))
        command = messages.command(inbound)
        if command is not None and command.name == "stop":
            await self.stop(inbound.key, inbound.id, letter=inbound)
        elif command is not None and command.name == "status":
            await self._look(inbound)

    async def _look(self, inbound: Inbound) -> None:
        """Have the daemon with the lane of the chat answer, though the message waits behind others."""
        order = StatusOrder(id=inbound.id, key=inbound.key, letter=inbound)
        await self._mailbox.tell("control", slot_of(inbound.key), order.to_bytes())

    async def stop(self, key: str, message_id: str = "", *, letter: Inbound | None = None) -> None:
        """Ask the daemon that runs a turn of ``key`` to stop it; ``letter`` is what asks for it."""
        order = StopOrder(id=message_id or f"{OWN}{durable.new_id()}", key=key, letter=letter)
        await self._mailbox.tell("control", slot_of(key), order.to_bytes())


T = TypeVar("T")
_UNMENTIONED_MAX: Final = 10_000
# Between two tries, even where the queue has just come back.
LEAST_PAUSE_S: Final = 0.1
ADMIN_TIMEOUT_S: Final = 10.0
PERSON_SAID: Final = (
    "I do not know you yet. Ask the operator of this bot to let you in with\n"
    "{} pairing approve {}\nThe code is valid for one hour."
)
GROUP_SAID: Final = (
    "I do not answer in this group yet. Ask the operator of this bot to let it in with\n"
    "{} pairing approve {}\nThe code is valid for one hour."
)
UNREADABLE_SAID: Final = "I cannot read this kind of message. Please send what it says as text or as a file."
FORBIDDEN_SAID: Final = "In a group, only administrators and people approved by the operator can use /{}."
UNDECIDED_SAID: Final = "In a group, only people approved by the operator can decide this."
UNKNOWN_SAID: Final = (
    "/{} is for the administrators of this group, but I cannot find out who they are right now. Try again."
)


class Reception:
    """Takes the arrivals of one adapter.

    Args:
        name: of the channel.
        is_admin: whether a person administers a group, by chat id and person id; None where the platform
            does not know.
        clock: the wall clock, UTC.
        held: hears which arrivals wait for something of the workspace.
        restricted: further commands that not everybody in a group may give.
        command: how the operator calls this program.
    """

    def __init__(
        self,
        *,
        name: str,
        table: Platform,
        intake: Intake,
        mailbox: Mailbox,
        state: Path,
        media: MediaFolder,
        is_admin: Callable[[str, str], Awaitable[bool]] | None,
        clock: Callable[[], datetime] = durable.now,
        held: HeldBack | None = None,
        restricted: Collection[str] = (),
        command: str = "chat-gateway",
    ) -> None:
        self._command = command
        self._restricted = RESTRICTED | {*restricted}
        self._held = held if held is not None else HeldBack()
        self._name = name
        self._table = table
        self._intake = intake
        self._mailbox = mailbox
        self._state = state
        self._media = media
        self._is_admin = is_admin
        self._clock = clock
        self._pairing = pairing.Pairing(state, clock=clock)
        self._guard = LoopGuard()
        # Chat and platform id → inbound id of messages in groups that were not for the bot.
        self._unmentioned: BoundedDict[tuple[str, str], str] = BoundedDict(_UNMENTIONED_MAX)

    async def accept(self, arrival: Arrival) -> bool:
        """Return once an arrival is durable, or dismissed; wait for as long as the queue is away.

        It fails only by being cancelled. The same arrival again becomes the same message.

        Returns:
            False where it was dismissed without a word.
        """
        arrival = _sound(arrival)
        if arrival.moved_from:
            await self._until_done(arrival, lambda: self._move(arrival))
            return True
        if arrival.kind == "edit":
            arrival = self._as_first_read(arrival)
        verdict = await self._until_done(arrival, lambda: self._verdict(arrival))
        match verdict:
            case Ignore(reason):
                if reason == NOT_MENTIONED and arrival.platform_id and arrival.kind == "message":
                    self._unmentioned[arrival.chat_id, arrival.platform_id] = arrival.id
                self._dismiss(arrival, reason)
                return False
            case AskCode(who):
                return await self._ask(arrival, who)
            case Accept() if arrival.unreadable:
                return await self._unreadable(arrival)
            case Accept():
                await self._take(arrival)
        return True

    # ── who may ───────────────────────────────────────────────────────────────────────────────────────────

    def _as_first_read(self, arrival: Arrival) -> Arrival:
        """Turn an edit that addresses the bot, where its message did not, into that message.

        It gets the message's own id, by which a queue knows it if its platform delivers it again. Other edits
        bring no files.
        """
        place = (arrival.chat_id, arrival.platform_id or "")
        is_order = arrival.meta.get("deleted") is True or commands.parse(arrival.text) is not None
        if not arrival.mentioned or is_order or place not in self._unmentioned:
            return replace(arrival, files=(), quoted=None)
        return replace(arrival, id=self._unmentioned.pop(place), kind="message")

    async def _verdict(self, arrival: Arrival) -> Verdict:
        approved = pairing.approved(self._state, self._name)
        verdict = decide(arrival, name=self._name, table=self._table, approved=approved)
        lets = self._guard.lets(arrival) if isinstance(verdict, Accept) or not arrival.from_bot else True
        return verdict if lets else Ignore("too many messages of bots")

    async def _ask(self, arrival: Arrival, who: pairing.Who) -> bool:
        """Answer with a code, unless silence is the answer (False)."""
        sender = arrival.sender
        asker, name = sender.id, sender.name
        if who == "group":
            asker, name = arrival.group_ids[0], f"group, asked by {sender.name or sender.id}"

        async def ask() -> str | None:
            return await asyncio.to_thread(
                self._pairing.ask,
                self._name,
                asker,
                kind=who,
                name=name,
                message_id=arrival.id,
                chat_id=arrival.chat_id,
            )

        code = await self._until_done(arrival, ask)
        if code is None:
            self._dismiss(arrival, f"{who} not allowed, told before")
            return False
        said = (GROUP_SAID if who == "group" else PERSON_SAID).format(self._command, code)
        await self._tell(arrival, "pairing", said)
        self._dismiss(arrival, f"{who} not allowed, told a code")
        return True

    async def _forbidden(self, arrival: Arrival) -> str:
        """Return what to say to a command that this person may not use in a group; empty where he may."""
        is_own = arrival.kind != "edit" and not arrival.forwarded_from
        command = commands.parse(arrival.text) if is_own else None
        if command is None or (command.name in LOOKS and not command.rest):
            return ""
        decides = command.name in commands.DECIDING
        if not (decides or command.name in self._restricted):
            return ""
        approved = pairing.approved(self._state, self._name)
        if is_allowed(arrival.sender.id, table=self._table, approved=approved):
            return ""
        if decides:
            # Whoever administers a group was not let in for that: what runs concerns this machine.
            return UNDECIDED_SAID
        if self._is_admin is None or not arrival.sender.id:
            return FORBIDDEN_SAID.format(command.name)
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                admin = await self._is_admin(arrival.chat_id, arrival.sender.id)
        except (ChannelError, OSError) as error:
            # A time-out is an OSError, too.
            log.warning("admins.unknown", channel=self._name, error=str(error))
            return UNKNOWN_SAID.format(command.name)
        return "" if admin else FORBIDDEN_SAID.format(command.name)

    # ── the hand-over ─────────────────────────────────────────────────────────────────────────────────────

    async def _take(self, arrival: Arrival) -> None:
        if arrival.group and (said := await self._until_done(arrival, lambda: self._forbidden(arrival))):
            await self._tell(arrival, "forbidden", said)
            self._dismiss(arrival, "command not allowed")
            return
        attachments: list[Attachment] = []
        if arrival.files:
            text, attachments = await self._saved(arrival.text, arrival.files)
            arrival = replace(arrival, text=text)
        quoted = await self._quoted(arrival.quoted) if arrival.quoted is not None else None
        # The files are on disk by now: a message never names one that a crash has kept from being written.
        inbound = self._inbound(arrival, attachments, quoted)
        await self._until_done(arrival, lambda: self._intake.accept(inbound))

    async def _unreadable(self, arrival: Arrival) -> bool:
        """Tell the chat that a message is lost to the bot, where it was meant for it (False: it was not)."""
        log.warning("arrival.unreadable", channel=self._name, id=arrival.id, reason=arrival.unreadable)
        if arrival.kind != "message" or (arrival.group and not arrival.mentioned):
            return False
        await self._tell(arrival, "unreadable", UNREADABLE_SAID)
        return True

    async def _saved(self, text: str, files: Iterable[File]) -> tuple[str, list[Attachment]]:
        """Download the files; each one that cannot be had becomes a line of the text."""
        attachments: list[Attachment] = []
        lines = [text] if text else []
        for file in files:
            match await self._media.save(file):
                case FileRefused(refused):
                    lines.append(refused)
                case Attachment() as attachment:
                    attachments.append(attachment)
        return "\n".join(lines), attachments

    async def _quoted(self, quote: Quote) -> Quoted:
        text, attachments = await self._saved(quote.text, quote.files)
        return Quoted(
            author=quote.author,
            text=text,
            message_id=quote.message_id,
            attachments=attachments,
            partial=quote.partial,
            own=quote.own,
            opens=quote.opens,
        )

    async def _move(self, arrival: Arrival) -> None:
        """Tell the session that its chat goes on under another key, and let the group in there as here."""
        old = arrival.moved_from
        new = arrival.group_ids[0] if arrival.group_ids else arrival.chat_id
        approved = pairing.approved(self._state, self._name)
        listed = group_allowed((old,), table=self._table, approved=approved)
        if listed and not group_allowed((new,), table=self._table, approved=approved):
            await asyncio.to_thread(
                self._pairing.admit, self._name, new, kind="group", name=f"group, until now {old}"
            )
        moved = replace(
            arrival, chat_id=old, kind="action", meta={"moved_to": f"{self._name}:{arrival.chat_id}"}
        )
        await self._intake.accept(self._inbound(moved, []))
        # What a person wrote down for the old id holds no longer, a denied tool among it.
        log.warning(
            "group.moved",
            old=old,
            new=new,
            hint="where the configuration names the old id, as [tools.policy.chats] may, name the new one",
        )

    async def _tell(self, arrival: Arrival, reason: str, text: str) -> None:
        inbound = self._inbound(arrival, [])
        post = replies.notice(inbound, reason, text, self._clock())
        await self._until_done(arrival, lambda: self._mailbox.put(post))

    def _inbound(
        self, arrival: Arrival, attachments: list[Attachment], quoted: Quoted | None = None
    ) -> Inbound:
        return Inbound(
            v=1,
            id=arrival.id,
            key=f"{self._name}:{arrival.chat_id}",
            channel=self._name,
            chat_id=arrival.chat_id,
            text=arrival.text,
            kind=arrival.kind,
            platform_id=arrival.platform_id,
            sender=arrival.sender,
            attachments=attachments,
            group=arrival.group,
            mentioned=arrival.mentioned,
            reply_to=arrival.reply_to,
            quoted=quoted,
            forwarded_from=arrival.forwarded_from or None,
            part_of=arrival.part_of,
            sent_at=now_text(arrival.sent_at) if arrival.sent_at is not None else None,
            received_at=now_text(self._clock()),
            meta=dict(arrival.meta),
        )

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────

    async def _until_done(self, arrival: Arrival, work: Callable[[], Awaitable[T]]) -> T:
        """Try until it is done: what was not made durable is nowhere else than with the platform."""

        def told(error: Exception, tries: int) -> None:
            if not isinstance(error, (MailboxDown, ChannelError, OSError)):
                # One message ends here, and its chat waits for whoever reads the log.
                log.exception("arrival.failed", channel=self._name, id=arrival.id)
            elif tries == 1:
                log.warning("arrival.waits", channel=self._name, id=arrival.id, error=str(error))
            if isinstance(error, (ChannelError, OSError)):
                self._held.note(arrival.id, str(error))
            elif not isinstance(error, MailboxDown):
                # Of a queue that is away its own part tells, once for all who wait.
                self._held.note(arrival.id, f"it failed: {type(error).__name__}")

        try:
            return await until_durable(work, retried=(Exception,), told=told, pause=self._pause)
        finally:
            self._held.release(arrival.id)

    async def _pause(self, after_s: float) -> None:
        """Wait a little less, and where the queue is away not a moment longer than that."""
        # Many may wait: they must not come back all at once.
        after_s *= 1 - 0.2 * durable.uniform()
        if self._mailbox.health().up:
            # Something else failed, of which no event tells when it is mended.
            await asyncio.sleep(after_s)
            return
        try:
            async with asyncio.timeout(after_s):
                await self._mailbox.ready()
        except TimeoutError:
            return
        except GatewayError:
            await asyncio.sleep(after_s)
        else:
            await asyncio.sleep(LEAST_PAUSE_S)

    def _dismiss(self, arrival: Arrival, reason: str) -> None:
        log.info(
            "arrival.dismissed",
            channel=self._name,
            id=arrival.id,
            chat=arrival.chat_id,
            sender=arrival.sender.id,
            reason=reason,
        )


def _sound(arrival: Arrival) -> Arrival:
    """Replace what no JSON can carry: halves of surrogate pairs, and values that are not plain."""
    sender, quote = arrival.sender, arrival.quoted
    return replace(
        arrival,
        text=whole_text(arrival.text),
        forwarded_from=whole_text(arrival.forwarded_from),
        quoted=quote and replace(quote, author=whole_text(quote.author), text=whole_text(quote.text)),
        sender=Sender(
            id=whole_text(sender.id), name=whole_text(sender.name), username=whole_text(sender.username)
        ),
        meta=plain_value(arrival.meta),
    )
