"""The third hand-over: an outbound message is gone only after its platform accepted the last chunk.

``OutboundSender`` serves the queue of one platform, with a lane for each chat. ``ChunkSender`` sends one
chunk until the platform took it or refused it, or nobody can know which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

import durable
from channels.base import Channel, Chunk, Edits, Presses, Rendered, Types
from channels.errors import (
    ChannelDown,
    ChannelError,
    ChatMoved,
    SendLater,
    SendNever,
    SendUnknown,
    Unreadable,
)
from channels.keyed_lanes import KeyedLanes
from channels.message import Button, Outbound, read_outbound
from gateway.dispatch.events import WAITING
from gateway.dispatch.policy import broken
from gateway.errors import LetterLost, MailboxDown, SendLogDown
from gateway.observer import LetterSent, Observer, PlatformCall
from gateway.outbound.attachments import AttachmentCopies, Folders, media_alone
from gateway.outbound.chunks import RateLimit, chunks, instead, is_group, nonce
from gateway.outbound.preview import LivePreviews
from gateway.outbound.send_log import Progress, SendLog
from gateway.queue.mailbox import Letter, Mailbox, ParkedAs, carried, outbound
from gateway.queue.retry import back_off_s
from session.transcript.line import read_time

T = TypeVar("T")
log = structlog.get_logger("delivery")

# Between two tries while the platform is away.
MAX_WAIT_S = 15.0
# Sends with an unknown outcome, where the platform does not recognise a repeat.
UNKNOWN_MAX = 2
# The same where it was our own process that died, each time, in mid-send.
DEATHS_MAX = 3
CRASHES_MAX = 2
MOVES_MAX = 5
# Questions whether a platform is back, some seconds apart, and how long one may take: in the end it is tried
# without, for one that answers nothing but sends.
QUESTIONS_MAX = 240
QUESTION_S = 10.0
# A file may take this many times as long as a text.
FILE_TIMES = 5
# Where a repeat is safe a file is given up when its sends of unknown outcome, with the waits behind them,
# took so long: one that a slow line always cuts off would hold up its chat for ever.
FILE_DOUBT_S = 600.0


# How a call is counted that ended in an error; any other has an unknown outcome.
_RESULTS = (
    (SendLater, "limited"),
    (ChatMoved, "moved"),
    (SendNever, "refused"),
    (ChannelDown, "down"),
)


class Gone(Exception):
    """The letter is no longer ours; it comes again, and goes on at this chunk."""


class ChunkRefused(Exception):
    """The chunk will not be sent; ``str(error)`` is the reason."""


class Undecided(ChunkRefused):
    """It is given up, though it may have been sent."""


@dataclass(slots=True)
class SendTask:
    """One chunk on its way.

    Args:
        unknown: how many sends of it have an unknown outcome.
        last: nothing of the letter follows.
        closing: it is the last of the letter's text, and has its buttons.
        ours: whether its letter can still be settled here.
        caption: what is shown beside it, where it is a file.
        doubt_s: what its sends of unknown outcome took, with the waits behind them.
    """

    out: Outbound
    number: int
    content: Rendered | Path
    unknown: int
    last: bool
    ours: Callable[[], bool]
    closing: bool = False
    caption: str = ""
    doubt_s: float = 0.0


class ChunkSender:
    """Calls a channel on behalf of many chats, at most ``at_once`` calls at a time.

    ``busy`` holds the tasks whose call is under way, ``last_error`` words for the operator.
    """

    def __init__(
        self,
        *,
        channel: Channel,
        send_log: SendLog,
        limiter: RateLimit,
        copies: AttachmentCopies,
        at_once: int,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[object]],
        now: Callable[[], float] = durable.monotonic,
        called: Callable[[PlatformCall], None] = lambda call: None,
    ) -> None:
        self._called = called
        self.busy: set[asyncio.Task[object]] = set()
        self.last_error = ""
        self._channel = channel
        self._send_log = send_log
        self._limiter = limiter
        self._copies = copies
        self._slots = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._now = now

    async def send(self, task: SendTask) -> None:
        """Return when the platform has accepted the chunk and that is on disk.

        Raises:
            ChunkRefused: the platform never will, or it may have and would show it twice.
            Gone: the letter is lost.
        """
        out, number = task.out, task.number
        tries = crashes = moves = 0
        most = DEATHS_MAX
        while True:
            if self._channel.safe_to_repeat:
                # What is sent in its place has its nonce: where the file is there after all, it stays.
                if isinstance(task.content, Path) and task.doubt_s >= FILE_DOUBT_S:
                    raise ChunkRefused("unknown")
            elif task.unknown >= most:
                raise Undecided("unknown")
            chat_id = self._send_log.address(out.chat_id)
            if task.unknown and not self._channel.safe_to_repeat:
                await self._back(task, chat_id)
            try:
                await self._once(task, chat_id)
            except SendLater as error:
                # The platform took nothing: noted, so that a death from here on puts no try in doubt.
                await self._not_sent(task)
                await self._pause(task, chat_id, error)
            except ChatMoved as error:
                await self._not_sent(task)
                moves += 1
                if moves > MOVES_MAX:
                    raise ChunkRefused(f"refused: {error}") from error
                # It is on disk before the next try: what waits in the queue still has the old address.
                await self._move(chat_id, error.to)
            except SendNever as error:
                await self._not_sent(task)
                self._note(task, error)
                raise ChunkRefused(f"refused: {error}") from error
            except ChannelDown as error:
                await self._not_sent(task)
                tries += 1
                await self._wait(task, error, tries)
            except (SendUnknown, TimeoutError) as error:
                # The platform may have taken it: how often it may be tried blindly is bounded.
                task.unknown += 1
                most = UNKNOWN_MAX
                task.doubt_s += await self._wait(task, error, task.unknown)
            except Gone:
                raise
            except Exception as error:
                # One chunk ends here: the adapter itself failed, perhaps after the platform took it.
                log.exception("send.crashed", key=out.key, id=out.id, piece=number)
                task.unknown += 1
                most = UNKNOWN_MAX
                crashes += 1
                if crashes >= CRASHES_MAX:
                    raise Undecided(f"failed: {type(error).__name__}") from error
                await self._wait(task, error, crashes)
            else:
                return

    async def _back(self, task: SendTask, chat_id: str) -> None:
        """Return when the platform answers again, as far as it can be asked what changes nothing.

        An outage that answers with errors would use up the few blind tries within a second.
        """
        channel = self._channel
        if not isinstance(channel, Types):
            return
        for tries in range(1, QUESTIONS_MAX + 1):
            try:
                async with self._slots, asyncio.timeout(QUESTION_S):
                    await channel.typing(chat_id)
            except (ChannelDown, SendUnknown, TimeoutError) as error:
                await self._wait(task, error, tries)
            except Exception:  # noqa: BLE001 - whatever it says, it is there
                return
            else:
                return
            if not task.ours():
                raise Gone

    async def _once(self, task: SendTask, chat_id: str) -> None:
        out, number = task.out, task.number
        async with self._call_of(task, chat_id), self._leaving(task.content) as content:
            chunk = Chunk(
                chat_id=chat_id,
                content=content,
                nonce=nonce(out.id, number),
                reply_to=out.reply_to if number == 0 and chat_id == out.chat_id else None,
                buttons=self._buttons(out) if task.closing else (),
                meta=out.meta,
                caption=task.caption if isinstance(content, Path) else "",
                first=number == 0,
            )
            # If the process dies from here on, nobody can know whether the platform took it.
            await self.durably(lambda: self._send_log.trying(out.key, out.id, number))
            with self._heard(task):
                async with asyncio.timeout(self._time_for(content)):
                    platform_id = await self._channel.send(chunk)
            if task.closing and out.replaced_by:
                await self.note_preview(out, platform_id, later=out.replaced_by)
            await self._accepted(task, platform_id)

    @asynccontextmanager
    async def _leaving(self, content: Rendered | Path) -> AsyncIterator[Rendered | Path]:
        """Have what a channel is given: a text as it is, of a file a copy that nothing else can replace."""
        if isinstance(content, Path):
            async with self._copies.of(content) as copy:
                yield copy
        else:
            yield content

    @contextmanager
    def _heard(self, task: SendTask) -> Iterator[None]:
        """Tell how the call to the platform within ended, and how long it took."""
        began_ns, began, result = durable.wall_ns(), self._now(), "accepted"
        try:
            yield
        except BaseException as error:
            result = next((name for kind, name in _RESULTS if isinstance(error, kind)), "unknown")
            raise
        finally:
            took_s, out = self._now() - began, task.out
            task.doubt_s += took_s if result == "unknown" else 0.0
            call = PlatformCall(self._channel.name, out.key, out.id, task.number, result, began_ns, took_s)
            self._called(call)

    async def _accepted(self, task: SendTask, platform_id: str) -> None:
        out, queued_at = task.out, read_time(task.out.created_at)
        await self.durably(
            lambda: self._send_log.sent(
                *(out.key, out.id, task.number),
                platform_id=platform_id,
                last=task.last,
                queued_at=queued_at,
            )
        )

    def _buttons(self, out: Outbound) -> Sequence[Button]:
        channel = self._channel
        return out.buttons[: channel.buttons_max] if isinstance(channel, Presses) else ()

    async def note_preview(self, out: Outbound, platform_id: str, *, later: str) -> None:
        """Note what the letter ``later`` changes when it comes: to it this message is a preview."""

        async def note() -> None:
            if await self._send_log.begin_preview(out.key, later) is not None:
                await self._send_log.preview_sent(out.key, later, platform_id)

        await self.durably(note)

    async def edit(self, task: SendTask, preview: str) -> bool:
        """Turn a preview into the chunk; False where it is not there any more and the chunk must be sent.

        The same edit may be made again and again, so that an unknown outcome is no question here.
        """
        out, channel, content = task.out, self._channel, task.content
        assert isinstance(channel, Edits)
        assert isinstance(content, Rendered)
        tries = 0
        while True:
            chat_id = self._send_log.address(out.chat_id)
            try:
                async with self._call_of(task, chat_id):
                    with self._heard(task):
                        async with asyncio.timeout(self._timeout_s):
                            await channel.edit(chat_id, preview, content)
                    await self._accepted(task, preview)
            except SendLater as error:
                await self._pause(task, chat_id, error)
            except (ChannelDown, SendUnknown, TimeoutError) as error:
                tries += 1
                await self._wait(task, error, tries)
            except Gone:
                raise
            except Exception as error:
                # The preview ends here, and the chunk is sent anew.
                if not isinstance(error, SendNever):
                    log.exception("edit.crashed", key=out.key, id=out.id)
                log.info("preview.given_up", key=out.key, id=out.id, error=str(error))
                await self.durably(lambda: self._send_log.drop_preview(out.key, out.id))
                return False
            else:
                return True

    @asynccontextmanager
    async def _call_of(self, task: SendTask, chat_id: str) -> AsyncIterator[None]:
        """Wait until this chat may be written to and a call is free, then hold that call."""
        await self._limiter.wait(chat_id, group=is_group(chat_id, task.out.meta))
        async with self._slots:
            # The letter may have been lost while the chat waited for its turn: another process sends it then.
            if not task.ours():
                raise Gone
            call = asyncio.current_task()
            assert call is not None
            self.busy.add(call)
            try:
                yield
            finally:
                self.busy.discard(call)

    async def durably(self, write: Callable[[], Awaitable[T]]) -> T:
        """Ask the send log until it answers: nothing may be sent that cannot be recorded."""
        tries = 0
        while True:
            try:
                return await write()
            except SendLogDown as error:
                tries += 1
                self.last_error = str(error)
                # The log may lie on the same full disk.
                with suppress(OSError):
                    log.error("send_log.refused", error=str(error), hint=error.hint)
                await self._sleep(back_off_s(tries))

    async def _not_sent(self, task: SendTask) -> None:
        await self.durably(lambda: self._send_log.not_sent(task.out.key, task.out.id, task.number))

    async def _move(self, old: str, new: str) -> None:
        log.info("chat.moved", channel=self._channel.name, old=old, new=new)
        await self.durably(lambda: self._send_log.moved(old, new))

    async def _pause(self, task: SendTask, chat_id: str, error: SendLater) -> None:
        await self._limiter.pause(chat_id, error.after_s)
        log.info("send.limited", key=task.out.key, id=task.out.id, after_s=round(error.after_s, 2))

    async def _wait(self, task: SendTask, error: Exception, tries: int) -> float:
        """Wait before the next try; return how long, in seconds."""
        self._note(task, error)
        wait = min(back_off_s(tries, spread=durable.uniform()), MAX_WAIT_S)
        log.warning(
            "send.delayed",
            key=task.out.key,
            id=task.out.id,
            piece=task.number,
            cause=type(error).__name__,
            error=str(error),
            hint=getattr(error, "hint", ""),
            wait_s=round(wait, 2),
        )
        await self._sleep(wait)
        return wait

    def _note(self, task: SendTask, error: Exception) -> None:
        said = str(error) if isinstance(error, ChannelError) else type(error).__name__
        self.last_error = f"{task.out.key}: {said}"

    def _time_for(self, content: Rendered | Path) -> float:
        """Return how long the call for a chunk may take, in seconds."""
        return self._timeout_s * (FILE_TIMES if isinstance(content, Path) else 1)


# Calls to one platform.
AT_ONCE = 64
SEND_TIMEOUT_S = 60.0
# For the calls that are under way when delivery ends.
GRACE_S = 5.0
MESSAGE_CRASHES_MAX = 3


@dataclass(slots=True)
class _Entry:
    out: Outbound
    letter: Letter
    begun_s: float = 0.0
    waited_s: float | None = None


class OutboundSender:
    """Serves one platform: chat by chat in the order of arrival, chats side by side.

    A chat that must wait holds up no other. ``attached`` is set once letters are taken.

    Args:
        state: the folder of this machine's files, where what leaves is copied to.
        group: where the work on the chats runs; one that is cancelled together with ``run`` cuts calls off.
        previews: who shows replies while they are written; None: nobody.
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
        previews: LivePreviews | None = None,
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
        self._previews = previews
        if previews is not None:
            previews.give_way(self.idle)
        self._max_bytes = int(max_file_mb * 2**20)
        self._sleep = sleep
        self._now = now
        self._copies = AttachmentCopies(state, workspace, max_bytes=self._max_bytes)
        self._sender = ChunkSender(
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
        if entry.letter.lost:
            return
        entry.begun_s = self._now()
        made_at = read_time(entry.out.created_at)
        if made_at is not None:
            entry.waited_s = max((durable.now() - made_at).total_seconds(), 0.0)
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
            except ChunkRefused as error:
                if not isinstance(error, Undecided):
                    await self._tell_refusal(entry)
                await self._park(entry, str(error))
                return
            except Exception as error:
                # One letter ends here: what nobody foresaw is tried again, then parked.
                log.exception("delivery.crashed", key=out.key, id=out.id)
                crashes += 1
                if crashes >= MESSAGE_CRASHES_MAX:
                    await self._park(entry, f"failed: {type(error).__name__}")
                    return
                await self._sleep(back_off_s(crashes))
            else:
                self._tell(entry, "delivered", count)
                return

    async def _deliver(self, entry: _Entry) -> int:
        """Send what the platform has not accepted yet; return how many chunks that were."""
        out = entry.out
        await self._preview_closed(out)
        progress = await self._sender.durably(lambda: self._send_log.progress(out.key, out.id))
        if progress.done:
            return 0
        todo = await chunks(
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
            progress = replace(progress, preview=await self._preview_left(out) or progress.preview)
        for number in missing:
            task = SendTask(
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
                await self._hand_over(task, progress)
            except ChunkRefused as error:
                if isinstance(error, Undecided) or not isinstance(task.content, Path):
                    raise
                log.warning("file.refused", key=out.key, id=out.id, piece=number, reason=str(error))
                why = "this file could not be sent"
                attachment = out.attachments[number - files]
                task.content = await instead(self._channel, attachment, why=why)
                task.unknown = 0
                await self._hand_over(task, progress)
        if not missing:
            await self._sender.durably(lambda: self._send_log.done(out.key, out.id))
        return len(missing)

    async def _hand_over(self, task: SendTask, progress: Progress) -> None:
        previewed = progress.preview if task.number == 0 else ""
        edits = previewed and isinstance(self._channel, Edits) and isinstance(task.content, Rendered)
        if not (edits and await self._sender.edit(task, previewed)):
            await self._sender.send(task)

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
        task = SendTask(notice, 0, words, unknown=0, last=True, ours=ours)
        with suppress(ChunkRefused):
            await self._sender.send(task)

    async def _preview_closed(self, out: Outbound) -> None:
        """Return when no change of this reply's preview is under way, nor will be."""
        if self._previews is not None and out.kind == "reply" and out.in_reply_to:
            await self._previews.close(out.key, out.in_reply_to)

    async def _preview_left(self, out: Outbound) -> str:
        """Leave the preview of the reply as it stands: what comes after a notice stands below it.

        A notice that ends its message takes the preview's place: half an answer must not look like one.

        Returns:
            the platform's id of the preview whose place it takes; empty: it takes none.
        """
        if self._previews is None or not out.in_reply_to:
            return ""
        await self._previews.leave(out.key, out.in_reply_to)
        reply, half = f"{out.in_reply_to}#reply", ""
        reason = out.id.rpartition("#notice.")[2].partition(".")[0]
        if out.kind == "notice" and reason not in WAITING:
            half = (await self._sender.durably(lambda: self._send_log.progress(out.key, reply))).preview
        if half:
            await self._sender.note_preview(out, half, later=out.id)
        await self._sender.durably(lambda: self._send_log.drop_preview(out.key, reply))
        return half

    def _tell(self, entry: _Entry, result: str, chunks: int) -> None:
        """Write the one line of the log that a letter has in the end, and let it be counted."""
        out, took_s = entry.out, self._now() - entry.begun_s
        if result == "delivered":
            waited_s = None if entry.waited_s is None else round(entry.waited_s, 3)
            figures = {"pieces": chunks, "wait_s": waited_s, "took_s": round(took_s, 3)}
            log.info("letter.delivered", key=out.key, id=out.id, result=result, **figures)
        name = self._channel.name
        self._observer.letter_sent(LetterSent(name, out.key, out.id, result, chunks, entry.waited_s, took_s))

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
        if not letter.lost:
            await self._set_aside(lambda: letter, ParkedAs(None, f"unreadable: {fault}", 0))

    async def _set_aside(self, current: Callable[[], Letter], listed: ParkedAs) -> bool:
        """Park a letter; False where it comes again, as one does whose parking broke again and again."""
        crashes = 0
        while crashes < MESSAGE_CRASHES_MAX:
            try:
                parked = await self._end(
                    current,
                    lambda letter: self._mailbox.park(letter, listed),
                )
            except Exception:
                # One letter ends here: it stays in its queue, and the channel goes on with all others.
                crashes += 1
                log.exception("parking.crashed", key=listed.key, id=current().id, tries=crashes)
                if crashes < MESSAGE_CRASHES_MAX:
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
