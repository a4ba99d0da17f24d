"""The third hand-over: an outbound letter is gone only after its platform accepted the last piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

import durable
from channels.base import Channel, Edits, Rendered
from channels.errors import Unreadable
from channels.keyed_lanes import KeyedLanes
from channels.message import Outbound, read_outbound
from gateway.errors import LetterLost, MailboxDown
from gateway.observer import LetterSent, Observer
from gateway.outbound.copies import Copies
from gateway.outbound.drafts import Drafts
from gateway.outbound.enclosing import Folders, media_alone
from gateway.outbound.pieces import RateLimit, instead, pieces
from gateway.outbound.send_log import Progress, SendLog
from gateway.outbound.sender import Errand, Gone, PieceRefused, PieceSender, Undecided
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs, carried, outbound
from gateway.queue.retry import back_off_s
from gateway.turns.event import WAITING
from gateway.turns.policy import broken
from session.transcript.line import read_time

log = structlog.get_logger("delivery")

# Calls to one platform.
AT_ONCE = 64
SEND_TIMEOUT_S = 60.0
# For the calls that are under way when delivery ends.
GRACE_S = 5.0
CRASHES_MAX = 3


@dataclass(slots=True)
class _Entry:
    out: Outbound
    letter: Letter
    begun: bool = False
    begun_s: float = 0.0
    waited_s: float | None = None


class Delivery:
    """Serves one platform: chat by chat in the order of arrival, chats side by side.

    A chat that must wait holds up no other. ``attached`` is set once letters are taken.

    Args:
        state: the folder of this machine's files, where what leaves is copied to.
        group: where the work on the chats runs; one that is cancelled together with ``run`` cuts calls off.
        drafts: who shows replies while they are written; None: nobody.
        max_file_mb: files beyond it are named in the chat, not sent.
        sleep: waits some seconds.
        now: a clock that never goes back, in seconds.
        folders: names those below which a letter's files may lie.
        timeout_s: how long one call to the platform may take; a file may take longer.
        observer: hears of each call to the platform, and of each letter that has ended.
    """

    def __init__(
        self,
        *,
        channel: Channel,
        mailbox: Mailbox,
        send_log: SendLog,
        limiter: RateLimit,
        workspace: Path,
        state: Path,
        group: asyncio.TaskGroup,
        drafts: Drafts | None = None,
        max_file_mb: float = 20,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = durable.monotonic,
        folders: Folders = media_alone,
        timeout_s: float = SEND_TIMEOUT_S,
        at_once: int = AT_ONCE,
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self._observer = observer
        self.attached = asyncio.Event()
        self.parked = 0
        self._channel = channel
        self._mailbox = mailbox
        self._send_log = send_log
        self._workspace = workspace
        self._folders = folders
        self._group = group
        self._drafts = drafts
        if drafts is not None:
            drafts.give_way(self.idle)
        self._max_bytes = int(max_file_mb * 2**20)
        self._sleep = sleep
        self._now = now
        self._copies = Copies(state, workspace, max_bytes=self._max_bytes)
        self._sender = PieceSender(
            channel=channel,
            send_log=send_log,
            limiter=limiter,
            copies=self._copies,
            at_once=at_once,
            timeout_s=timeout_s,
            sleep=sleep,
            now=now,
            called=observer.called,
        )
        self._chats: KeyedLanes[_Entry] = KeyedLanes(self._serve, start=self._start_chat)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def last_error(self) -> str:
        """The last error of a send, in words for the operator; empty where there was none."""
        return self._sender.last_error

    def idle(self, chat_id: str) -> bool:
        """Say whether no letter for a chat waits or is being sent here."""
        return not any(self._chats.items(chat_id))

    async def run(self) -> None:
        """Deliver until cancelled; calls under way then may end within some seconds."""
        async with self._mailbox.take(outbound(self._channel.name)) as letters:
            try:
                self.attached.set()
                async for letter in letters:
                    try:
                        self._receive(letter)
                    except Exception as error:
                        # One letter ends here: the loop serves all chats.
                        log.exception("letter.broken", id=letter.id)
                        self._spawn(self._park_unreadable(letter, str(broken(error))), "park unreadable")
            finally:
                await self._close()

    def _receive(self, letter: Letter) -> None:
        try:
            out = read_outbound(letter.body)
        except Unreadable as error:
            self._spawn(self._park_unreadable(letter, str(error)), "park unreadable")
            return
        if letter.suspect:
            self._observer.redelivered(letter.box)
        # The connection was lost in mid-send: the letter that is being sent gets its new delivery.
        if letter.suspect:
            for entry in self._chats.items(out.chat_id):
                if entry.letter.lost and (entry.out.key, entry.out.id) == (out.key, out.id):
                    entry.letter = letter
                    if entry.begun:
                        letter.begin()
                    return
        self._chats.put(out.chat_id, _Entry(out, letter))

    def _start_chat(self, chat: Coroutine[Any, Any, None], chat_id: str) -> None:
        self._spawn(chat, f"deliver {self._channel.name}:{chat_id}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def rest(self, within_s: float) -> None:
        """Begin nothing more; return when the calls under way have ended, or after ``within_s`` seconds."""
        self._closing = True
        self._chats.close()
        # A call that is cut off has an unknown outcome: those under way may end.
        for task in self._tasks - self._sender.busy:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def _close(self) -> None:
        """Let the calls under way end, then cancel what is left."""
        await self.rest(GRACE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._copies.aclose()

    # -- one chat ----------------------------------------------------------------------------------

    async def _serve(self, entry: _Entry) -> None:
        # A lost letter comes again, and all behind it, in order: without any wait each leaves its lane.
        entry.begun = entry.letter.begin()
        entry.begun_s = self._now()
        made_at = read_time(entry.out.created_at)
        if made_at is not None:
            entry.waited_s = max((durable.now() - made_at).total_seconds(), 0.0)
        if entry.begun:
            carries = carried.set(entry.letter.headers)
            try:
                await self._work(entry)
            finally:
                carried.reset(carries)

    async def _work(self, entry: _Entry) -> None:
        """Bring one letter to its end, unless it comes again."""
        out = entry.out
        crashes = 0
        while True:
            try:
                count = await self._deliver(entry)
                await self._settle(entry)
            except Gone:
                return
            except PieceRefused as error:
                if not isinstance(error, Undecided):
                    await self._tell_refusal(entry)
                await self._park(entry, str(error))
                return
            except Exception as error:
                # One letter ends here: what nobody foresaw is tried again, then parked.
                log.exception("delivery.crashed", key=out.key, id=out.id)
                crashes += 1
                if crashes >= CRASHES_MAX:
                    await self._park(entry, f"failed: {type(error).__name__}")
                    return
                await self._sleep(back_off_s(crashes))
            else:
                self._tell(entry, "delivered", count)
                return

    async def _deliver(self, entry: _Entry) -> int:
        """Send what the platform has not accepted yet; return how many pieces that were."""
        out = entry.out
        await self._draft_closed(out)
        progress = await self._sender.durably(lambda: self._send_log.progress(out.key, out.id))
        if progress.done:
            return 0
        todo = await pieces(
            self._channel,
            out,
            workspace=self._workspace,
            folders=await self._folders(out),
            max_bytes=self._max_bytes,
        )
        files = len(todo) - len(out.attachments)
        missing = [number for number in range(len(todo)) if number not in progress.sent]
        # A notice that takes the place of a question stands where that stood.
        if missing and (out.buttons or (out.kind == "notice" and not progress.preview)):
            progress = replace(progress, preview=await self._draft_left(out) or progress.preview)
        for number in missing:
            errand = Errand(
                out,
                number,
                todo[number],
                unknown=progress.unknown.get(number, 0),
                last=number == missing[-1],
                ours=lambda: not (entry.letter.lost or self._closing),
                caption=out.attachments[number - files].caption if number >= files else "",
                closing=number == files - 1,
            )
            try:
                await self._hand_over(errand, progress)
            except PieceRefused as error:
                if isinstance(error, Undecided) or not isinstance(errand.content, Path):
                    raise
                log.warning("file.refused", key=out.key, id=out.id, piece=number, reason=str(error))
                why = "this file could not be sent"
                attachment = out.attachments[number - files]
                errand.content = await instead(self._channel, attachment, why=why)
                errand.unknown = 0
                await self._hand_over(errand, progress)
        if not missing:
            await self._sender.durably(lambda: self._send_log.done(out.key, out.id))
        return len(missing)

    async def _hand_over(self, errand: Errand, progress: Progress) -> None:
        drafted = progress.preview if errand.number == 0 else ""
        edits = drafted and isinstance(self._channel, Edits) and isinstance(errand.content, Rendered)
        if not (edits and await self._sender.edit(errand, drafted)):
            await self._sender.send(errand)

    async def _tell_refusal(self, entry: _Entry) -> None:
        """Say in the chat that its answer was refused; a platform that refuses this as well hears no more."""
        out = entry.out
        if out.kind != "reply":
            return
        changed = {"id": f"{out.id}.refused", "kind": "notice", "replaced_by": None}
        notice = out.model_copy(update={**changed, "attachments": [], "buttons": []})
        if (await self._sender.durably(lambda: self._send_log.progress(out.key, notice.id))).done:
            return
        name = out.channel.capitalize()
        words = Rendered(f"{name} rejected the answer to this message. The operator can see why.")
        ours = lambda: not (entry.letter.lost or self._closing)  # noqa: E731
        errand = Errand(notice, 0, words, unknown=0, last=True, ours=ours)
        with suppress(PieceRefused):
            await self._sender.send(errand)

    async def _draft_closed(self, out: Outbound) -> None:
        """Return when no change of this reply's draft is under way, nor will be."""
        if self._drafts is not None and out.kind == "reply" and out.in_reply_to:
            await self._drafts.close(out.key, out.in_reply_to)

    async def _draft_left(self, out: Outbound) -> str:
        """Leave the draft of the reply as it stands: what comes after a notice stands below it.

        A notice that ends its message takes the draft's place: half an answer must not look like one.

        Returns:
            the platform's id of the draft whose place it takes; empty: it takes none.
        """
        if self._drafts is None or not out.in_reply_to:
            return ""
        await self._drafts.leave(out.key, out.in_reply_to)
        reply, half = f"{out.in_reply_to}#reply", ""
        reason = out.id.rpartition("#notice.")[2].partition(".")[0]
        if out.kind == "notice" and reason not in WAITING:
            half = (await self._sender.durably(lambda: self._send_log.progress(out.key, reply))).preview
        if half:
            await self._sender.note_draft(out, half, later=out.id)
        await self._sender.durably(lambda: self._send_log.drop_preview(out.key, reply))
        return half

    def _tell(self, entry: _Entry, result: str, pieces: int) -> None:
        """Write the one line of the log that a letter has in the end, and let it be counted."""
        out, took_s = entry.out, self._now() - entry.begun_s
        if result == "delivered":
            waited_s = None if entry.waited_s is None else round(entry.waited_s, 3)
            figures = {"pieces": pieces, "wait_s": waited_s, "took_s": round(took_s, 3)}
            log.info("letter.delivered", key=out.key, id=out.id, result=result, **figures)
        name = self._channel.name
        self._observer.letter_sent(LetterSent(name, out.key, out.id, result, pieces, entry.waited_s, took_s))

    # -- the end of a letter -----------------------------------------------------------------------

    async def _settle(self, entry: _Entry) -> None:
        await self._end(lambda: entry.letter, self._mailbox.settle)

    async def _park(self, entry: _Entry, reason: str) -> None:
        """Set a letter aside, visibly, unless it comes again."""
        out = entry.out
        if await self._set_aside(lambda: entry.letter, ParkedAs(out.key, reason, 1)):
            self._tell(entry, "parked", 0)
            await self._sender.durably(lambda: self._send_log.set_aside(out.key, out.id))

    async def _park_unreadable(self, letter: Letter, fault: str) -> None:
        if letter.begin():
            await self._set_aside(lambda: letter, ParkedAs(None, f"unreadable: {fault}", 0))

    async def _set_aside(self, current: Callable[[], Letter], listed: ParkedAs) -> bool:
        """Park a letter; False where it comes again, as one does whose parking broke again and again."""
        crashes = 0
        while crashes < CRASHES_MAX:
            try:
                parked = await self._end(
                    current,
                    lambda letter: self._mailbox.park(letter, listed),
                )
            except Exception:
                # One letter ends here: it stays in its queue, and the channel goes on with all others.
                crashes += 1
                log.exception("parking.crashed", key=listed.key, id=current().id, tries=crashes)
                if crashes < CRASHES_MAX:
                    await self._sleep(back_off_s(crashes))
            else:
                if parked:
                    self.parked += 1
                    log.error("letter.parked", key=listed.key, id=current().id, reason=listed.reason)
                return parked
        log.error("letter.left", key=listed.key, id=current().id)
        return False

    async def _end(self, current: Callable[[], Letter], change: Callable[[Letter], Awaitable[None]]) -> bool:
        """Let go of a letter, however long the queue is away; False where it comes again."""
        tries = 0
        while True:
            try:
                await change(current())
            except LetterLost:
                if current().lost:
                    return False
                # It came again while this was under way: the new delivery is the one to let go of.
            except MailboxDown as error:
                tries += 1
                log.warning("letter.not_settled", error=str(error))
                await self._sleep(back_off_s(tries))
            else:
                return True
