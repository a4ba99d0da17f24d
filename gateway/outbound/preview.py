"""Shows in a chat that its answer is being written: typing, and a preview that grows into the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

import durable
from channels.base import Channel, Chunk, Edits, Promises, Rendered, Types
from channels.errors import ChannelDown, SendLater, SendNever
from durable import BoundedDict
from gateway.dispatch.control_order import WatchOrder
from gateway.dispatch.events import Event, read_event
from gateway.outbound.chunks import RateLimit, is_group, nonce, render
from gateway.outbound.send_log import SendLog
from gateway.queue.mailbox import Mailbox
from session.transcript.key import split

log = structlog.get_logger("previews")

# Asked for again every WATCH_EVERY_S.
WATCH_S = 60
WATCH_EVERY_S = 30.0
# At first more often: a daemon that starts beside us may not listen yet.
WATCH_FIRST_S = (1.0, 2.0, 5.0)
TYPING_EVERY_S = 4.0
EDIT_EVERY_S = 1.0
# A platform counts a group's messages by the minute: some must be left for the answers.
GROUP_EVERY_S = 5.0
FIRST_CHARS = 20
CALL_TIMEOUT_S = 10.0
# LivePreviews that wait for the limiter: an answer waits behind no more of them.
WAITING_MAX = 8
# Shown at once; turns beyond it are answered all the same.
TURNS_MAX = 1_000
CLOSED_MAX = 10_000
# The chunk number of a preview.
PREVIEW = -1
# Characters that are gathered: enough for one message of any platform. What is gathered is rendered anew each
# second, so that all of a long answer would cost more with every second that it takes.
TEXT_MAX = 16_384


@dataclass(slots=True)
class _Turn:
    """What is known of the turn that runs in a chat.

    Args:
        whole: its text was heard from the beginning.
        silent: no preview of it is shown, or none any more.
    """

    key: str
    chat_id: str
    message_id: str
    whole: bool
    heard_at: float
    text: list[str] = field(default_factory=list)
    chars: int = 0
    written_at: float = 0.0
    preview: str = ""
    shown: Rendered | None = None
    # How often the text changed, and after which change it was rendered last.
    changes: int = 0
    rendered_at: int = 0
    rendered: list[Rendered] = field(default_factory=list)
    over: bool = False
    silent: bool = False
    # The platform's id of the message that it answers, as far as it was heard.
    asked: str = ""
    called_at: float = float("-inf")
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def write(self, text: str, now: float) -> None:
        """Take in the next chunk of the answer."""
        if not self.text:
            self.written_at = now
        if self.chars < TEXT_MAX:
            self.text.append(text)
            self.chars += len(text)
            self.changes += 1

    def begin(self) -> None:
        """Begin the text anew: it was the preface of a tool, or the turn is tried again."""
        self.text.clear()
        self.chars = 0
        self.changes += 1
        self.whole = True


class LivePreviews:
    """Watches the turns of one platform's chats; nothing that fails here ends anything or delays an answer.

    Args:
        stream: show the text while it is written, where the platform can change a message.
        turn_timeout_s: after this much silence a turn counts as over.
        now: a clock that never goes back, in seconds.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        *,
        channel: Channel,
        mailbox: Mailbox,
        send_log: SendLog,
        limiter: RateLimit,
        stream: bool = True,
        turn_timeout_s: float = 600.0,
        now: Callable[[], float] = durable.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._mailbox = mailbox
        self._send_log = send_log
        self._limiter = limiter
        self._streams = stream and isinstance(channel, Edits)
        self._types = isinstance(channel, Types)
        self._turn_timeout_s = turn_timeout_s
        self._now = now
        self._sleep = sleep
        # Whether nothing is being delivered to a chat; as long as nobody delivers, nothing is.
        self._idle: Callable[[str], bool] = lambda chat_id: True
        self._group: asyncio.TaskGroup | None = None
        self._turns: dict[str, _Turn] = {}
        self._calls: dict[tuple[str, str], asyncio.Event] = {}
        self._waiting = 0
        self._closed: BoundedDict[tuple[str, str], None] = BoundedDict(CLOSED_MAX)
        self._typed_at: BoundedDict[str, float] = BoundedDict(CLOSED_MAX)
        # Until when the platform wants nothing for a chat that was written to too often.
        self._quiet_until: BoundedDict[str, float] = BoundedDict(TURNS_MAX)
        self._no_typing_until: BoundedDict[str, float] = BoundedDict(TURNS_MAX)

    def give_way(self, idle: Callable[[str], bool]) -> None:
        """Begin no preview in a chat of which ``idle`` says that letters are on their way to it."""
        self._idle = idle

    async def run(self) -> None:
        """Show until cancelled; return at once where there is nothing that could be shown."""
        if not (self._streams or self._types):
            return
        async with self._mailbox.listen("events") as bodies, asyncio.TaskGroup() as group:
            self._group = group
            watching = group.create_task(self._watch(), name="previews watch")
            try:
                async for body in bodies:
                    try:
                        self._hear(body)
                    except Exception:
                        # One event ends here: no answer depends on it.
                        log.exception("event.broken")
            finally:
                self._group = None
                watching.cancel()
                for turn in list(self._turns.values()):
                    self._end(turn)

    async def close(self, key: str, message_id: str) -> None:
        """Return when no call for the preview of this answer is under way, nor will be: it can be sent."""
        self._closed[key, message_id] = None
        turn = self._turns.get(key)
        if turn is not None and turn.message_id == message_id:
            self._end(turn)
        under_way = self._calls.get((key, message_id))
        if under_way is not None:
            await under_way.wait()

    async def leave(self, key: str, message_id: str) -> None:
        """As ``close``; but the turn may go on later, with a preview of its own."""
        await self.close(key, message_id)
        self._closed.pop((key, message_id), None)

    async def _watch(self) -> None:
        """Keep the daemons telling what their turns do."""
        waits = list(WATCH_FIRST_S)
        while True:
            order = WatchOrder(
                id=f"watch:{durable.new_id()}",
                slots="all",
                for_s=WATCH_S,
                channel=self._channel.name,
                reads=None if self._streams else False,
            )
            await self._mailbox.tell("control", 0, order.to_bytes())
            await self._sleep(waits.pop(0) if waits else WATCH_EVERY_S)

    # -- what is heard -----------------------------------------------------------------------------

    def _hear(self, body: bytes) -> None:
        event = read_event(body)
        if event is None or not event.in_reply_to:
            return
        channel, chat_id = split(event.key)
        if channel != self._channel.name:
            return
        match event.kind:
            case "queued":
                self._queued(chat_id)
            case "started" | "tool" | "delta":
                self._moves_on(event, event.in_reply_to)
            case "reply" | "notice":
                turn = self._turns.get(event.key)
                if turn is not None and turn.message_id == event.in_reply_to:
                    self._end(turn)

    def _queued(self, chat_id: str) -> None:
        if not self._types or self._group is None or len(self._turns) >= TURNS_MAX:
            return
        # Many messages that wait in one chat show no more than one: the platform would refuse so many calls,
        # and the chat's answers would wait for as long as it says.
        now = self._now()
        if now - self._typed_at.get(chat_id, float("-inf")) >= TYPING_EVERY_S:
            self._typed_at[chat_id] = now
            self._group.create_task(self._type(chat_id), name="typing once")

    def _moves_on(self, event: Event, message_id: str) -> None:
        key = event.key
        if (key, message_id) in self._closed:
            return
        turn = self._turns.get(key)
        if turn is None or turn.message_id != message_id:
            turn = self._begin(key, message_id, before=turn)
        if turn is None:
            return
        turn.heard_at = self._now()
        turn.asked = turn.asked or event.platform_id
        if event.kind == "delta":
            turn.write(event.text, self._now())
        else:
            turn.begin()

    def _begin(self, key: str, message_id: str, *, before: _Turn | None) -> _Turn | None:
        if before is not None:
            # One turn of a chat runs at a time: the end of this one was not heard.
            self._end(before)
        if self._group is None or len(self._turns) >= TURNS_MAX:
            return None
        _, chat_id = split(key)
        turn = self._turns[key] = _Turn(key, chat_id, message_id, whole=False, heard_at=self._now())
        work: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if self._types:
            work.append((f"typing {key}", self._keep_typing(turn)))
        if self._streams and not self._promised(message_id):
            work.append((f"preview {key}", self._keep_showing(turn)))
        turn.tasks = [self._group.create_task(each, name=name) for name, each in work]
        return turn

    def _promised(self, message_id: str) -> bool:
        """Say whether the answer has a place of its own already: a preview beside it would stay there."""
        return isinstance(self._channel, Promises) and self._channel.promised(message_id)

    def _end(self, turn: _Turn) -> None:
        """Begin no further call for this turn; a call for its preview that is under way ends by itself."""
        turn.over = True
        if self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
        if (turn.key, turn.message_id) not in self._calls:
            for task in turn.tasks:
                task.cancel()

    def _lives(self, turn: _Turn) -> bool:
        if not turn.over and self._now() - turn.heard_at > self._turn_timeout_s:
            self._end(turn)
        return not turn.over

    def _quiet(self, chat_id: str) -> bool:
        """Say whether the platform wants nothing for this chat now."""
        return self._quiet_until.get(chat_id, 0.0) > self._now()

    async def _be_quiet(self, chat_id: str, error: SendLater) -> None:
        await self._limiter.pause(chat_id, error.after_s)
        self._quiet_until[chat_id] = self._now() + error.after_s

    # -- typing ------------------------------------------------------------------------------------

    async def _keep_typing(self, turn: _Turn) -> None:
        while self._lives(turn):
            self._typed_at[turn.chat_id] = self._now()
            await self._type(turn.chat_id)
            await self._sleep(TYPING_EVERY_S)

    async def _type(self, chat_id: str) -> None:
        assert isinstance(self._channel, Types)
        address = self._send_log.address(chat_id)
        now = self._now()
        if self._quiet(address) or self._no_typing_until.get(address, now) > now:
            return
        try:
            # A platform that hangs must not hold up what comes after: typing is only shown.
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._channel.typing(address)
        except SendLater as error:
            # The platform means these requests: what is said in the chat waits for nothing.
            self._no_typing_until[address] = now + error.after_s
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            log.debug("typing.failed", chat_id=chat_id, cause=type(error).__name__)

    # -- previews ------------------------------------------------------------------------------------

    async def _keep_showing(self, turn: _Turn) -> None:
        every_s = GROUP_EVERY_S if is_group(turn.chat_id) else EDIT_EVERY_S
        while self._lives(turn):
            await self._sleep(EDIT_EVERY_S)
            now = self._now()
            if turn.over or turn.silent or not turn.whole or now - turn.called_at < every_s:
                continue
            if turn.chars >= FIRST_CHARS and now - turn.written_at >= EDIT_EVERY_S:
                try:
                    await self._draw(turn)
                except Exception as error:  # noqa: BLE001 - the answer comes without a preview
                    log.debug("preview.failed", key=turn.key, cause=type(error).__name__)
                    turn.silent = True

    def _in_the_way(self, turn: _Turn) -> bool:
        """Say whether a first message would come between the chunks of a letter; it waits, edits need not.

        The answer takes the preview's place: it would stand there for good.
        """
        return not turn.preview and not self._idle(turn.chat_id)

    async def _draw(self, turn: _Turn) -> None:
        """Show the beginning of the text so far, as far as one message holds it."""
        address = self._send_log.address(turn.chat_id)
        rendered = await self._rendered(turn)
        if not rendered or rendered[0] == turn.shown or self._quiet(address) or self._in_the_way(turn):
            return
        if self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(EDIT_EVERY_S):
                await self._limiter.wait(address, group=is_group(address))
        except TimeoutError:
            # The chat is busy, and the next look finds a longer text.
            return
        finally:
            self._waiting -= 1
        if turn.over or self._in_the_way(turn):
            return
        name = (turn.key, turn.message_id)
        # The answer waits for this call: a preview that comes after it would stand below it for ever.
        self._calls[name] = done = asyncio.Event()
        try:
            turn.called_at = self._now()
            await self._call(turn, address, rendered[0])
        finally:
            del self._calls[name]
            done.set()

    async def _rendered(self, turn: _Turn) -> list[Rendered]:
        """Render the text so far, unless it is what it was at the last look."""
        if turn.changes != turn.rendered_at:
            # It may change while it is rendered.
            changes = turn.changes
            turn.rendered = await render(self._channel, "".join(turn.text))
            turn.rendered_at = changes
        return turn.rendered

    async def _call(self, turn: _Turn, address: str, content: Rendered) -> None:
        out_id = f"{turn.message_id}#reply"
        if not turn.preview:
            found = await self._send_log.begin_preview(turn.key, out_id)
            turn.preview, turn.silent = found or "", found is None
        if turn.silent:
            return
        if self._in_the_way(turn):
            await self._send_log.drop_preview(turn.key, out_id)
            return
        try:
            if turn.preview:
                assert isinstance(self._channel, Edits)
                # The answer waits for this call, and must not wait longer than for a lost packet.
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._channel.edit(address, turn.preview, content)
            else:
                # A preview is sent once. By the nonce of one that was left, it would be that one again.
                # A reply is one from its creation on, and only creation notifies who asked.
                asked = turn.asked or None if address == turn.chat_id else None
                chunk = Chunk(address, content, nonce(durable.new_id(), PREVIEW), reply_to=asked)
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    preview = await self._channel.send(chunk)
                await self._send_log.preview_sent(turn.key, out_id, preview)
                turn.preview = preview
            turn.shown = content
        except (SendLater, ChannelDown, SendNever) as error:
            if isinstance(error, SendLater):
                await self._be_quiet(address, error)
            turn.silent = isinstance(error, SendNever)
            if not turn.preview:
                # It was surely not sent: what stands as begun would keep every later preview back.
                await self._send_log.drop_preview(turn.key, out_id)
            log.debug("preview.refused", key=turn.key, cause=type(error).__name__)
