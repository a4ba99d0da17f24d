"""Takes letters from the queues of a box: one channel per queue, handed over only by closing it.

The broker closes a channel whose oldest letter is half an hour old. Each channel is therefore closed
and opened again well before; its letters come back in order, as new objects.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

from durable import first_of
from gateway.errors import LetterLost, MailboxDown
from gateway.queue.mailbox import INBOUND, Letter
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import PROBE
from gateway.queue.rabbitmq.topology import QueueKind, grows_live
from gateway.queue.rabbitmq.window import FIRST_WINDOW, FIXED_WINDOW, cost_of, next_window
from gateway.queue.rabbitmq.wire import AccessRefused, BrokerMessage, NotFound

ATTACH_TIMEOUT_S = 10.0
RETRY_S = 1.0
# Letters handed out in a row before others run.
BREATH = 64
_log = structlog.get_logger()


class RabbitLetter:
    """A letter of one opening of a queue."""

    __slots__ = (
        "at",
        "body",
        "box",
        "dropped",
        "id",
        "key",
        "parked_id",
        "settled",
        "stream",
        "suspect",
        "tag",
    )

    def __init__(self, stream: Stream, delivery: BrokerMessage, at: float) -> None:
        self.stream, self.box = stream, stream.box
        self.tag, self.id, self.body = delivery.tag, delivery.id, delivery.body
        self.suspect = delivery.redelivered
        key = delivery.headers.get("key")
        self.key = key if isinstance(key, str) else None
        self.at = at
        self.dropped = self.settled = False
        self.parked_id = ""

    @property
    def lost(self) -> bool:
        """Whether its delivery ended before it was settled."""
        return not self.settled and (self.dropped or self.stream.closed)

    def begin(self) -> bool:
        """Say that work on it begins; False where it is lost, or its queue goes to another daemon."""
        if self.lost:
            return False
        self.stream.begun.add(self.tag)
        return True

    def ack(self) -> None:
        """Remove it from its queue; again is no error.

        Raises:
            LetterLost: its channel is closed; it comes again.
        """
        if self.settled:
            return
        if self.lost:
            raise LetterLost(f"letter {self.id} comes again: its delivery ended")
        self.stream.ack(self)


class LetterBuffer:
    """The letters of all queues of a box in one line, as the broker sends them."""

    def __init__(self) -> None:
        self._letters: deque[RabbitLetter] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._error: BaseException | None = None
        self._run = 0

    def put(self, letter: RabbitLetter) -> None:
        """Add a letter behind the others."""
        self._letters.append(letter)
        self._arrived.set()

    def close(self, error: BaseException | None = None) -> None:
        """End the iteration, with ``error`` where there is one."""
        self._closed, self._error = True, error
        self._letters.clear()
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[Letter]:
        return self

    async def __anext__(self) -> Letter:
        self._run += 1
        if self._run % BREATH == 0:
            await asyncio.sleep(0)
        while not self._closed:
            while self._letters:
                letter = self._letters.popleft()
                if not letter.lost:
                    return letter
            self._arrived.clear()
            await self._arrived.wait()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


class Stream:
    """One opening of one queue: the letters that came and were not settled yet, oldest first.

    ``window`` is how many of them may be out, ``cost`` the bytes they take, and ``filled`` is set when all
    of the window is out.
    """

    def __init__(
        self, box: str, queue: str, tray: LetterBuffer, channel: AmqpChannel, *, window: int, live: bool
    ) -> None:
        self.box, self.queue = box, queue
        self.window, self.cost, self.filled = window, 0, asyncio.Event()
        self.live = live
        self.begun: set[int] = set()
        self._tray, self._channel = tray, channel
        self._open: dict[int, RabbitLetter] = {}
        self._ended = self._held = False
        self._idle = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether nothing of it can be settled any more."""
        return self._ended or self._channel.ended.is_set()

    @property
    def unsettled(self) -> int:
        """How many letters it holds."""
        return 0 if self.closed else self.held

    @property
    def held(self) -> int:
        """How many letters it was handed and did not settle, also after its end."""
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether all of its window is out."""
        return len(self._open) >= self.window

    async def widen(self, window: int) -> None:
        """Let more letters be out.

        Raises:
            LinkDown: the channel is closed.
        """
        await self._channel.limit(window, live=self.live)
        self.window = window

    def oldest_at(self) -> float | None:
        """When the oldest unsettled letter was delivered, on the loop's clock."""
        return next(iter(self._open.values())).at if self._open else None

    def deliver(self, delivery: BrokerMessage) -> None:
        """Take in what the broker sends."""
        if self.closed or self._held:
            # It returns to the queue when the channel is closed.
            return
        if PROBE in delivery.headers:
            self._channel.ack(delivery.tag)
            return
        letter = RabbitLetter(self, delivery, asyncio.get_running_loop().time())
        self._open[letter.tag] = letter
        self.cost += cost_of(letter.body)
        if self.full:
            self.filled.set()
        self._tray.put(letter)

    def ack(self, letter: RabbitLetter) -> None:
        """Acknowledge one of its letters."""
        self._channel.ack(letter.tag)
        letter.settled = True
        del self._open[letter.tag]
        self.cost -= cost_of(letter.body)
        self.begun.discard(letter.tag)
        if not self.begun:
            self._idle.set()

    async def hold(self, patience_s: float) -> None:
        """Hand out and begin nothing more; return when what was begun is settled, or patience ends."""
        self._held = True
        for letter in self._open.values():
            letter.dropped = letter.tag not in self.begun
        end = asyncio.get_running_loop().time() + patience_s
        while self.begun and not self.closed and asyncio.get_running_loop().time() < end:
            self._idle.clear()
            left_s = end - asyncio.get_running_loop().time()
            await first_of(self._idle.wait(), self._channel.ended.wait(), timeout_s=left_s)

    def end(self) -> None:
        """Make all its letters lost."""
        self._ended = True


class QueueReader:
    """Opens the queues of boxes on the consuming connection, again and again until the context is left."""

    def __init__(
        self,
        attached: Callable[[], Awaitable[Link]],
        current: Callable[[], Link | None],
        mend: Callable[[str], Awaitable[None]],
        kind_of: Callable[[str], QueueKind | None],
        *,
        renew_after_s: float,
        handover_s: float,
    ) -> None:
        self._attached, self._current, self._mend = attached, current, mend
        self._kind_of = kind_of
        self._renew_after_s, self._handover_s = renew_after_s, handover_s
        self._streams: set[Stream] = set()
        # Of queues whose last opening ended with letters out: lanes hold that many, and none is to wait anew.
        self._windows: dict[str, int] = {}
        self._bound_told = False

    def unsettled(self, box: str) -> int:
        """How many letters of a box this process holds."""
        return sum(stream.unsettled for stream in self._streams if stream.box == box)

    @asynccontextmanager
    async def take(self, box: str, queues: list[str]) -> AsyncIterator[AsyncIterator[Letter]]:
        """Keep the queues open while the context is; entered once each was tried, where the broker is up."""
        tray = LetterBuffer()
        tried = {queue: asyncio.Event() for queue in queues}
        feeds = {f"take {queue}": self._feed(box, queue, tray, tried[queue]) for queue in queues}
        try:
            async with beside(feeds, tray.close):
                if self._current() is not None:
                    await all_set(list(tried.values()), ATTACH_TIMEOUT_S)
                yield tray
        finally:
            tray.close()

    async def _feed(self, box: str, queue: str, tray: LetterBuffer, tried: asyncio.Event) -> None:
        while True:
            link = await self._attached()
            pause_s = 0.0
            try:
                await self._open_once(link, box, queue, tray, tried)
            except NotFound:
                pause_s = await self._mended(box)
            except AccessRefused:
                # Another process takes from it: wait for its end.
                pause_s = RETRY_S
            except MailboxDown as error:
                pause_s = RETRY_S
                if not link.ended.is_set():
                    _log.warning("queue.not_opened", queue=queue, error=str(error))
            tried.set()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _open_once(
        self, link: Link, box: str, queue: str, tray: LetterBuffer, tried: asyncio.Event
    ) -> None:
        channel = await link.channel()
        live = grows_live(self._kind_of(queue), link.version)
        window = self._windows.get(queue, FIRST_WINDOW) if live else FIXED_WINDOW
        stream = Stream(box, queue, tray, channel, window=window, live=live)
        self._streams.add(stream)
        try:
            await stream.widen(window)
            # Inbound queues have a single active consumer; elsewhere exclusiveness keeps the order.
            await channel.consume(queue, stream.deliver, exclusive=box != INBOUND)
            tried.set()
            while not channel.ended.is_set():
                due_s = self._due_s(stream)
                if due_s <= 0:
                    await self._renew(link, stream)
                    return
                await self._watch(stream, due_s, channel.ended)
            if not link.ended.is_set():
                _log.info("queue.channel_closed", queue=queue, cause=channel.cause)
        finally:
            self._streams.discard(stream)
            self._windows.pop(queue, None)
            if stream.held:
                self._windows[queue] = stream.window
            stream.end()
            await channel.close()

    async def _watch(self, stream: Stream, due_s: float, ended: asyncio.Event) -> None:
        """Return when the stream ended, is due, or may have to grow; grow it where it is full."""
        if not stream.full:
            stream.filled.clear()
            await first_of(ended.wait(), stream.filled.wait(), timeout_s=due_s)
        elif not await self._grown(stream):
            # What frees bytes may be letters of other queues, so that nothing of this one tells.
            await first_of(ended.wait(), timeout_s=min(due_s, RETRY_S))

    async def _grown(self, stream: Stream) -> bool:
        """Widen a window that is full, unless it is fixed or the letters of this process take their bound."""
        cost = sum(each.cost for each in self._streams)
        window = next_window(stream.window, stream.cost, cost)
        if window == stream.window:
            if not self._bound_told:
                self._bound_told = True
                _log.warning("queue.window_bounded", queue=stream.queue, window=window, bytes=cost)
            return False
        if not stream.live:
            return False
        self._bound_told = False
        await stream.widen(window)
        _log.info("queue.window_grown", queue=stream.queue, window=window, bytes=cost)
        return True

    async def _mended(self, box: str) -> float:
        try:
            await self._mend(box)
        except MailboxDown as error:
            _log.warning("queue.missing", box=box, error=str(error))
        return RETRY_S

    def _due_s(self, stream: Stream) -> float:
        oldest_at, now = stream.oldest_at(), asyncio.get_running_loop().time()
        return self._renew_after_s - (now - oldest_at if oldest_at is not None else 0)

    async def _renew(self, link: Link, stream: Stream) -> None:
        """Prepare the closing: at once where the letters come back here, else when the running ones ended."""
        desk = await link.channel()
        try:
            others = (await desk.declare_queue(stream.queue, passive=True)).consumers > 1
        finally:
            await desk.close()
        if others:
            await stream.hold(self._handover_s)
        _log.info("queue.renewed", queue=stream.queue, handed_over=others, unsettled=stream.unsettled)


async def all_set(events: Collection[asyncio.Event], timeout_s: float) -> None:
    """Return when all of the events are set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            for event in events:
                await event.wait()
    except TimeoutError:
        _log.warning("queue.slow_to_open")


@asynccontextmanager
async def beside(
    work: Mapping[str, Coroutine[Any, Any, None]],
    on_crash: Callable[[BaseException], None],
) -> AsyncIterator[None]:
    """Run named work while the context is open; ``on_crash`` hears of one that fails."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task.crashed", task=task.get_name(), exc_info=error)
            on_crash(error)

    tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
