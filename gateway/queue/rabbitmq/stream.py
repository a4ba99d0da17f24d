"""One opening of one queue: its unsettled letters, and which it leaves with the broker for now."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aio_pika.abc import AbstractIncomingMessage

from durable import first_of
from gateway.errors import LetterLost
from gateway.queue.feed import LetterFeed
from gateway.queue.held import HeldBytes
from gateway.queue.mailbox import NO_HEADERS, carried_in
from gateway.queue.rabbitmq.connection import AmqpChannel, LinkDown
from gateway.queue.rabbitmq.record import PROBE
from gateway.queue.rabbitmq.window import cost_of


class RabbitLetter:
    """A letter of one opening of a queue."""

    __slots__ = (
        "at",
        "body",
        "box",
        "dropped",
        "headers",
        "id",
        "key",
        "message",
        "parked_at",
        "parked_id",
        "settled",
        "stream",
        "suspect",
    )

    def __init__(self, stream: Stream, message: AbstractIncomingMessage, at: float) -> None:
        self.stream, self.box = stream, stream.box
        self.message, self.id, self.body = message, message.message_id or "", message.body
        self.suspect = bool(message.redelivered)
        self.headers = carried_in(message.headers) if len(message.headers) > 1 else NO_HEADERS
        key = message.headers.get("key")
        self.key = key if isinstance(key, str) else None
        self.at = at
        self.dropped = self.settled = False
        # Parked again, it is the same message to the broker.
        self.parked_id = self.parked_at = ""

    @property
    def lost(self) -> bool:
        """Whether its delivery ended before it was settled."""
        return not self.settled and (self.dropped or self.stream.closed)

    def begin(self) -> bool:
        """Say that work on it begins; False where it is lost, or may be another daemon's by now."""
        if self.lost or not self.stream.is_proven():
            return False
        self.stream.begin(self)
        return True

    def rest(self) -> None:
        """Say that its work pauses: it may go to another daemon meanwhile, and is lost here then."""
        self.stream.rest(self)

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

    ``window`` is how many of them may be out. ``bytes_held`` bounds their size: a letter beyond it is
    declined, as is every one behind it. Declined letters come again when the queue is opened anew.
    ``stalled`` is set when all of the window is out, or a letter was declined. ``is_proven`` says whether the
    broker still knows the connection. ``active`` says that the broker sent something: with a single active
    consumer nobody else is sent anything before this opening ends.
    """

    def __init__(
        self,
        box: str,
        queue: str,
        buffer: LetterBuffer,
        channel: AmqpChannel,
        bytes_held: HeldBytes,
        *,
        window: int,
        live: bool,
        is_proven: Callable[[], bool],
    ) -> None:
        self.box, self.queue = box, queue
        self.window, self.stalled = window, asyncio.Event()
        self.live, self.is_proven = live, is_proven
        # When work on each letter began that did not end; the earliest first.
        self.begun: dict[RabbitLetter, float] = {}
        self.declined = 0
        self._declined_cost = 0
        self._buffer, self._channel, self._bytes_held = buffer, channel, bytes_held
        # The oldest first.
        self._open: dict[RabbitLetter, None] = {}
        self.active = self._ended = self._handing_over = False
        self._idle = asyncio.Event()
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

    @property
    def cost(self) -> int:
        """How many bytes they take."""
        return self._bytes_held.of(self)

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
        return next(iter(self._open)).at if self._open else None

    async def deliver(self, message: AbstractIncomingMessage) -> None:
        """Take in what the broker sends."""
        self.active = True
        # What is not taken here returns to the queue when the channel is closed.
        if self.closed or self._handing_over:
            return
        if PROBE in message.headers:
            await self._channel.ack(message)
            return
        cost = cost_of(message.body)
        # A small letter behind a declined one may be of the same key, and would overtake it.
        if self.declined or not self._bytes_held.takes(self, cost):
            self._declined_cost = self._declined_cost or cost
            self.declined += 1
            self.stalled.set()
            return
        letter = RabbitLetter(self, message, self._clock())
        self._open[letter] = None
        self._bytes_held.add(self, cost)
        if self.full:
            self.stalled.set()
        self._buffer.put(letter)

    def takes_again(self) -> bool:
        """Say whether so much was settled that the declined letters are worth being sent once more."""
        half_free = self.cost <= self._bytes_held.bound_of(self) // 2
        return self.declined > 0 and half_free and self._bytes_held.takes(self, self._declined_cost)

    async def ack(self, letter: RabbitLetter) -> None:
        """Acknowledge one of its letters.

        Raises:
            LinkDown: the channel is closed.
        """
        # All is noted first: who gives up in between must not acknowledge it twice, which closes the channel.
        letter.settled = True
        del self._open[letter]
        self._bytes_held.add(self, -cost_of(letter.body))
        self._ended_work(letter)
        try:
            await self._channel.ack(letter.message)
        except LinkDown:
            letter.settled = False
            raise

    def begin(self, letter: RabbitLetter) -> None:
        """Note that work on one of its letters begins."""
        self.begun.setdefault(letter, self._clock())

    @property
    def running_s(self) -> float:
        """For how long the letter that began first has been worked on; 0 while none is."""
        return self._clock() - next(iter(self.begun.values())) if self.begun else 0.0

    def rest(self, letter: RabbitLetter) -> None:
        """Wait no longer for one of its letters when the queue is handed over."""
        if letter in self.begun and not letter.settled:
            letter.dropped = letter.dropped or self._handing_over
            self._ended_work(letter)

    def _ended_work(self, letter: RabbitLetter) -> None:
        self.begun.pop(letter, None)
        if not self.begun:
            self._idle.set()

    async def hand_over(self, within_s: float) -> None:
        """Take and begin nothing more; return when what was begun is settled, or the time is over."""
        # Another daemon is handed these letters next: a turn that began now would run twice.
        self._handing_over = True
        for letter in self._open:
            letter.dropped = letter not in self.begun
        end = self._clock() + within_s
        while self.begun and not self.closed and self._clock() < end:
            self._idle.clear()
            left_s = end - self._clock()
            await first_of(self._idle.wait(), self._channel.ended.wait(), timeout_s=left_s)

    def end(self) -> None:
        """Make all its letters lost."""
        self._ended = True
        self._bytes_held.leave(self)
