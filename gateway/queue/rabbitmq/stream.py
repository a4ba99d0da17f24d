"""One opening of one queue: its unsettled letters, and which it leaves with the broker for now."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aio_pika.abc import AbstractIncomingMessage

from gateway.errors import LetterLost
from gateway.queue.feed import LetterFeed
from gateway.queue.held import HeldBytes
from gateway.queue.mailbox import NO_HEADERS, carried_in
from gateway.queue.rabbitmq.connection import AmqpChannel, LinkDown
from gateway.queue.rabbitmq.record import PROBE


class RabbitLetter:
    """A letter of one opening of a queue."""

    __slots__ = (
        "at",
        "body",
        "box",
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
        self.settled = False
        # Parked again, it is the same message to the broker.
        self.parked_id = self.parked_at = ""

    @property
    def lost(self) -> bool:
        """Whether its delivery ended before it was settled."""
        return not self.settled and self.stream.closed

    def begin(self) -> bool:
        """Say that work on it begins; False where it is lost."""
        return not self.lost

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

    async def deliver(self, message: AbstractIncomingMessage) -> None:
        """Take in what the broker sends."""
        # What is not taken here returns to the queue when the channel is closed.
        if self.closed:
            return
        if PROBE in message.headers:
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


# A short letter's objects take more than its body.
LETTER_BYTES: Final = 1024


def cost_of(body: bytes) -> int:
    """Count what a letter takes of the bound, in bytes."""
    return max(len(body), LETTER_BYTES)
