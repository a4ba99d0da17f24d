"""Takes letters from the queues of a box: one channel per queue, given back only by closing it.

The broker closes a channel whose oldest letter is half an hour old. Each channel is therefore closed
and opened again well before; its letters come back in order, as new objects. The same brings back the
letters that were declined because they were too large to be held beside the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

import structlog
from aiormq.abc import DeliveredMessage

import durable
from durable import first_of
from gateway.errors import LetterLost, MailboxDown
from gateway.queue.feed import HeldBytes, LetterFeed
from gateway.queue.mailbox import INBOUND, NO_HEADERS, InMemory, Letter, carried_in
from gateway.queue.rabbitmq.connection import AccessRefused, AmqpChannel, Link, LinkDown, NotFound, headers_of
from gateway.queue.rabbitmq.topology import PROBE

# How many letters of a queue may be out, everywhere and for ever: a quorum queue hands out what came back in
# the order of its return, so that a smaller number behind a larger one would reorder a chat.
PREFETCH: Final = 1_000
ATTACH_TIMEOUT_S = 10.0
RETRY_S = 1.0
# A short letter's objects take more than its body.
LETTER_BYTES: Final = 1024
_log = structlog.get_logger()


class RabbitLetter(Letter):
    """A letter of one opening of a queue."""

    __slots__ = ("at", "message", "parked_at", "parked_id", "settled", "stream")

    def __init__(self, stream: Stream, message: DeliveredMessage, at: float) -> None:
        headers = headers_of(message)
        key = headers.get("key")
        super().__init__(
            stream.box,
            message.header.properties.message_id or "",
            message.body,
            key=key if isinstance(key, str) else None,
            headers=carried_in(headers) if len(headers) > 1 else NO_HEADERS,
            suspect=bool(message.redelivered),
        )
        self.stream, self.message, self.at = stream, message, at
        self.settled = False
        # Parked again, it is the same message to the broker.
        self.parked_id = self.parked_at = ""

    @property
    def lost(self) -> bool:
        """Whether its channel was closed before it was settled."""
        return not self.settled and self.stream.closed

    async def ack(self) -> None:
        """Remove it from its queue; again is no error.

        Raises:
            LetterLost: its channel is closed; it comes again.
        """
        if self.settled:
            return
        try:
            if self.lost:
                raise LinkDown("its delivery ended")
            await self.stream.ack(self)
        except LinkDown as error:
            raise LetterLost(f"letter {self.id} comes again: {error}") from error


class LetterBuffer(LetterFeed):
    """The letters of all queues of a box in one line, as the broker sends them."""

    def __init__(self) -> None:
        super().__init__()
        self._letters: deque[RabbitLetter] = deque()

    def put(self, letter: RabbitLetter) -> None:
        """Add a letter behind the others."""
        self._letters.append(letter)
        self.arrived.set()

    def next(self) -> RabbitLetter | None:
        """Take out the next letter that can still be settled."""
        while self._letters:
            letter = self._letters.popleft()
            if not letter.lost:
                return letter
        return None

    def end(self, error: BaseException | None = None) -> None:
        """End the iteration; what was not handed out yet is dropped."""
        self._letters.clear()
        super().end(error)


class Stream:
    """One opening of one queue: the letters that came and were not settled yet, oldest first.

    ``bytes_held`` bounds their size: a letter beyond it is declined, as is every one behind it, and
    ``declining`` is set. Declined letters come again when the queue is opened anew.
    """

    def __init__(
        self,
        box: str,
        queue: str,
        buffer: LetterBuffer,
        channel: AmqpChannel,
        bytes_held: HeldBytes,
    ) -> None:
        self.box, self.queue = box, queue
        self.declined, self.declining = 0, asyncio.Event()
        self._declined_cost = 0
        self._buffer, self._channel, self._bytes_held = buffer, channel, bytes_held
        # The oldest first.
        self._open: dict[RabbitLetter, None] = {}
        self._ended = False
        self._clock = asyncio.get_running_loop().time
        bytes_held.join(self)

    @property
    def closed(self) -> bool:
        """Whether nothing of it can be settled any more."""
        return self._ended or self._channel.ended.is_set()

    @property
    def out(self) -> int:
        """How many letters the broker counts as this process's work, declined ones included."""
        return 0 if self.closed else self.held + self.declined

    @property
    def held(self) -> int:
        """How many letters it took and did not settle, also after its end."""
        return len(self._open)

    def oldest_at(self) -> float | None:
        """When the oldest unsettled letter was delivered, on the loop's clock."""
        return next(iter(self._open)).at if self._open else None

    async def deliver(self, message: DeliveredMessage) -> None:
        """Take in what the broker sends."""
        # What is not taken here returns to the queue when the channel is closed.
        if self.closed:
            return
        if PROBE in headers_of(message):
            await self._channel.ack(message)
            return
        cost = cost_of(message.body)
        # A small letter behind a declined one may be of the same key, and would overtake it.
        if self.declined or not self._bytes_held.takes(self, cost):
            self._declined_cost = self._declined_cost or cost
            self.declined += 1
            self.declining.set()
            return
        letter = RabbitLetter(self, message, self._clock())
        self._open[letter] = None
        self._bytes_held.add(self, cost)
        self._buffer.put(letter)

    def takes_again(self) -> bool:
        """Say whether so much was settled that the declined letters are worth being sent once more."""
        if not self.declined:
            return False
        half_free = self._bytes_held.of(self) <= self._bytes_held.bound_of(self) // 2
        return half_free and self._bytes_held.takes(self, self._declined_cost)

    async def ack(self, letter: RabbitLetter) -> None:
        """Acknowledge one of its letters.

        Raises:
            LinkDown: the channel is closed.
        """
        # All is noted first: who gives up in between must not acknowledge it twice, which closes the channel.
        letter.settled = True
        del self._open[letter]
        self._bytes_held.add(self, -cost_of(letter.body))
        try:
            await self._channel.ack(letter.message)
        except LinkDown:
            letter.settled = False
            raise

    def end(self) -> None:
        """Make all its letters lost."""
        self._ended = True
        self._bytes_held.leave(self)


def cost_of(body: bytes) -> int:
    """Count what a letter takes of the bound, in bytes."""
    return max(len(body), LETTER_BYTES)


class QueueReader:
    """Opens the queues of boxes on the consuming connection, again and again until the context is left."""

    def __init__(
        self,
        attached: Callable[[], Awaitable[Link]],
        current: Callable[[], Link | None],
        mend: Callable[[str], Awaitable[None]],
        bytes_held: HeldBytes,
        *,
        renew_after_s: float,
    ) -> None:
        self._attached, self._current, self._mend = attached, current, mend
        self._bytes_held, self._renew_after_s = bytes_held, renew_after_s
        self._streams: set[Stream] = set()
        self._bound_told = False
        self._refused: set[str] = set()

    def out(self, box: str) -> int:
        """How many letters of a box are this process's work, those included that it declined for now."""
        return sum(stream.out for stream in self._streams if stream.box == box)

    def opened(self, box: str) -> int:
        """How many queues of a box are open here."""
        return sum(not stream.closed for stream in self._streams if stream.box == box)

    def in_memory(self) -> InMemory:
        """Say what this process holds, and how much it may."""
        letters = sum(stream.held for stream in self._streams)
        return InMemory(letters, self._bytes_held.total, self._bytes_held.max_bytes)

    @asynccontextmanager
    async def take(self, box: str, queues: Collection[str]) -> AsyncIterator[AsyncIterator[Letter]]:
        """Keep the queues open while the context is; entered once each was tried, where the broker is up.

        Where taking from one fails in a way that nobody foresaw, the letters end with its error.
        """
        buffer = LetterBuffer()
        tried = {queue: asyncio.Event() for queue in queues}

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("task.crashed", task=task.get_name(), exc_info=error)
                buffer.end(error)

        tasks = [
            asyncio.create_task(self._feed(box, queue, buffer, tried[queue]), name=f"take {queue}")
            for queue in queues
        ]
        for task in tasks:
            task.add_done_callback(ended)
        try:
            if self._current() is not None:
                await all_set(tried.values(), ATTACH_TIMEOUT_S)
            yield buffer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            buffer.end()

    async def _feed(self, box: str, queue: str, buffer: LetterBuffer, tried: asyncio.Event) -> None:
        while True:
            link = await self._attached()
            pause_s = 0.0
            try:
                await self._open_once(link, box, queue, buffer, tried)
            except NotFound:
                # The queue was deleted, by hand or with a reset of the broker: nobody else makes it again.
                pause_s = await self._mended(box)
            except AccessRefused as error:
                # Another process takes from it: wait for its end.
                pause_s = RETRY_S
                if error.hint:
                    self._tell_refused(box, error)
            except MailboxDown as error:
                pause_s = RETRY_S
                if not link.ended.is_set():
                    _log.warning("queue.not_opened", queue=queue, error=str(error))
            tried.set()
            await asyncio.sleep(pause_s * durable.uniform(0.5, 1.0))

    async def _open_once(
        self, link: Link, box: str, queue: str, buffer: LetterBuffer, tried: asyncio.Event
    ) -> None:
        channel = await link.channel()
        stream = Stream(box, queue, buffer, channel, self._bytes_held)
        self._streams.add(stream)
        try:
            await channel.limit(PREFETCH)
            # Inbound queues have a single active consumer; elsewhere exclusiveness keeps the order.
            await channel.consume(queue, stream.deliver, exclusive=box != INBOUND)
            self._refused.discard(box)
            tried.set()
            await self._until_due(stream, channel.ended)
            if not channel.ended.is_set():
                _log.info("queue.renewed", queue=queue, unsettled=stream.held, declined=stream.declined)
            elif not link.ended.is_set():
                _log.info("queue.channel_closed", queue=queue, cause=channel.cause)
        finally:
            self._streams.discard(stream)
            stream.end()
            # On a quorum queue nothing but the channel's end gives back what is unsettled in its order.
            await channel.close()

    async def _until_due(self, stream: Stream, ended: asyncio.Event) -> None:
        """Return when the queue is to be opened anew, or its channel has ended."""
        clock = asyncio.get_running_loop().time
        while not (ended.is_set() or stream.takes_again()):
            oldest_at = stream.oldest_at()
            due_s = self._renew_after_s - (clock() - oldest_at if oldest_at is not None else 0)
            if due_s <= 0:
                return
            if not stream.declined:
                await first_of(ended.wait(), stream.declining.wait(), timeout_s=due_s)
                continue
            self._tell_bound(stream)
            # What frees bytes may be letters of other queues, so that nothing of this one tells.
            await first_of(ended.wait(), timeout_s=min(due_s, RETRY_S))

    def _tell_bound(self, stream: Stream) -> None:
        """Say once in the log that the bytes in memory are the bound."""
        if not self._bound_told:
            self._bound_told = True
            _log.warning("queue.bytes_bounded", queue=stream.queue, bytes=self._bytes_held.total)

    def _tell_refused(self, box: str, error: AccessRefused) -> None:
        """Say once in the log that this user may take nothing from a box, until it may."""
        if box not in self._refused:
            self._refused.add(box)
            _log.error("queue.refused", box=box, error=str(error), hint=error.hint)

    async def _mended(self, box: str) -> float:
        try:
            await self._mend(box)
        except MailboxDown as error:
            _log.warning("queue.missing", box=box, error=str(error))
        return RETRY_S


async def all_set(events: Collection[asyncio.Event], timeout_s: float) -> None:
    """Return when all of the events are set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            for event in events:
                await event.wait()
    except TimeoutError:
        # A queue that another process still holds must not keep this one from serving the others.
        _log.warning("queue.slow_to_open")
