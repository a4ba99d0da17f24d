"""The transient fan-out within one process: whoever listens hears what is told, and nobody waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from gateway.queue.mailbox import Topic

# Messages that one listener may be behind.
EARS_HOLD = 1_000


class Fanout:
    """Control and events for the listeners of this process.

    A listener that falls more than 1,000 messages behind loses the oldest of them: what is told is transient,
    and what it stands for can be read elsewhere.
    """

    def __init__(self) -> None:
        self._ears: list[_Ear] = []

    def tell(self, topic: Topic, slot: int, body: bytes) -> None:
        """Hand ``body`` to all who listen now."""
        for ear in self._ears:
            if ear.topic == topic and (ear.slots is None or slot in ear.slots):
                ear.hear(body)

    @asynccontextmanager
    async def listen(
        self, topic: Topic, slots: Collection[int] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Receive what is told while the context is open; ``control`` goes to all, whatever the slots."""
        ear = _Ear(topic, None if slots is None or topic == "control" else frozenset(slots))
        self._ears.append(ear)
        try:
            yield ear
        finally:
            self._ears.remove(ear)


class _Ear:
    def __init__(self, topic: Topic, slots: frozenset[int] | None) -> None:
        self.topic = topic
        self.slots = slots
        self._heard: deque[bytes] = deque(maxlen=EARS_HOLD)
        self._rang = asyncio.Event()

    def hear(self, body: bytes) -> None:
        self._heard.append(body)
        self._rang.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._heard:
            self._rang.clear()
            await self._rang.wait()
        return self._heard.popleft()
