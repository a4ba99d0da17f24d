"""The transient fan-out within one process: whoever listens hears what is told, and nobody waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from gateway.queue.mailbox import Topic

# Messages that one listener may be behind.
BEHIND_MAX = 1_000


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
