"""What both queues keep in memory: bounded bytes, the letters of a taker, listeners of this process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from gateway.queue.mailbox import Letter, Topic

BYTES_MAX: Final = 64 * 2**20
# The part of the bound that is divided.
_DIVIDED = 16
# Letters handed out in a row before others run.
IN_A_ROW = 64
# Messages that one listener may be behind.
BEHIND_MAX = 1_000


class HeldBytes:
    """Counts the bytes of bodies that the queues of one process hold; a queue is whatever joined.

    A small part of the bound is divided among the queues, so that one with very large letters leaves each of
    the others some; the rest goes to whichever queue needs it. All together stay within ``max_bytes``, except
    that a queue which holds nothing takes one letter of any size: it would otherwise stand still for ever.
    """

    def __init__(self, max_bytes: int = BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.total = 0
        self._divided = max_bytes // _DIVIDED
        self._of: dict[object, int] = {}

    def join(self, queue: object) -> None:
        """Count a further queue, which holds nothing yet."""
        self._of[queue] = 0

    def leave(self, queue: object) -> None:
        """Forget a queue with all that it holds."""
        self.total -= self._of.pop(queue, 0)

    def of(self, queue: object) -> int:
        """Say how many bytes a queue holds."""
        return self._of[queue]

    def add(self, queue: object, size: int) -> None:
        """Count what a queue took; below zero: what it let go."""
        self._of[queue] += size
        self.total += size

    def bound_of(self, queue: object) -> int:
        """Say how many bytes a queue may hold while the others hold what they do."""
        share = self._divided // len(self._of)
        beyond = sum(max(0, size - share) for other, size in self._of.items() if other is not queue)
        return share + max(0, self.max_bytes - self._divided - beyond)

    def takes(self, queue: object, size: int) -> bool:
        """Say whether a queue may take ``size`` bytes more."""
        # This comes first because it is asked for each letter, and summing up is for the rare case.
        if self.total + size <= self.max_bytes - self._divided:
            return True
        return not self._of[queue] or self._of[queue] + size <= self.bound_of(queue)


class LetterFeed(ABC):
    """Letters of a box for one taker, until it is ended; ``arrived`` is set when there may be one more."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._run = 0

    @abstractmethod
    def next(self) -> Letter | None:
        """Take the next letter out; None: there is none yet."""

    def end(self, error: BaseException | None = None) -> None:
        """End the iteration, with ``error`` if something went wrong."""
        self._ended, self._error = True, error
        self.arrived.set()

    def __aiter__(self) -> AsyncIterator[Letter]:
        return self

    async def __anext__(self) -> Letter:
        self._run += 1
        if self._run % IN_A_ROW == 0:
            await asyncio.sleep(0)
        while not self._ended:
            letter = self.next()
            if letter is not None:
                return letter
            self._run = 0
            self.arrived.clear()
            await self.arrived.wait()
        raise self._error or StopAsyncIteration


class Fanout:
    """Control and events for the listeners of this process.

    A listener that falls more than 1,000 messages behind loses the oldest of them: what is told is transient,
    and what it stands for can be read elsewhere.
    """

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []

    def tell(self, topic: Topic, slot: int, body: bytes) -> None:
        """Hand ``body`` to all who listen now."""
        for listener in self._listeners:
            if listener.topic == topic and (listener.slots is None or slot in listener.slots):
                listener.take(body)

    @asynccontextmanager
    async def listen(
        self, topic: Topic, slots: Collection[int] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Receive what is told while the context is open; ``control`` goes to all, whatever the slots."""
        listener = _Listener(topic, None if slots is None or topic != "events" else frozenset(slots))
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)


class _Listener:
    def __init__(self, topic: Topic, slots: frozenset[int] | None) -> None:
        self.topic = topic
        self.slots = slots
        self._waiting: deque[bytes] = deque(maxlen=BEHIND_MAX)
        self._arrived = asyncio.Event()

    def take(self, body: bytes) -> None:
        self._waiting.append(body)
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()
