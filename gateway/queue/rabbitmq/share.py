"""One partition as one of several daemons takes it: enters its line, makes way in it, stands alone in it."""

from __future__ import annotations

import asyncio

import structlog

from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.presence import Presence
from gateway.queue.rabbitmq.stream import Stream

# How long those who stand in front of the owner are waited for, and the heir when a queue is opened anew.
OTHERS_S = 5.0
LOOK_S = 0.25
# While what runs is waited for, the other chats of a partition get no answer. How much longer it will run
# nobody knows, as long again is the guess; so much of the time that passed since may that be.
YOUNG = 0.25
_log = structlog.get_logger()


class Share:
    """The part of this daemon in one partition."""

    def __init__(self, presence: Presence, partition: int, queue: str) -> None:
        self._presence, self._place, self._queue = presence, presence.place(partition), queue
        self.leaving = self._place.leaving
        self._asked_at: float | None = None

    async def wanted(self, looked: asyncio.Event) -> None:
        """Return when this daemon is to enter the line; ``looked`` is set once that is known."""
        await self._presence.looked()
        if not self._place.wanted.is_set():
            looked.set()
        await self._place.wanted.wait()

    def entering(self, stream: Stream) -> None:
        """Note that it enters the line now."""
        self._presence.entering(self._place, stream)

    def entered(self) -> None:
        """Note that it stands in the line."""
        self._presence.entered(self._place)

    def left(self) -> None:
        """Note that it has left the line."""
        self._presence.left(self._place)

    def is_time(self, stream: Stream, within_s: float) -> bool:
        """Say whether to make way now: the owner waits, and nothing runs that would keep others waiting long.

        Whatever runs, it is time when that has been so for ``within_s``.
        """
        if not self.leaving.is_set():
            self._asked_at = None
            return False
        now = asyncio.get_running_loop().time()
        if self._asked_at is None:
            self._asked_at = now
        asked_s = now - self._asked_at
        return stream.running_s <= YOUNG * asked_s or asked_s >= within_s

    async def changed(self) -> None:
        """Return when it may have become time to make way."""
        if self.leaving.is_set():
            await asyncio.sleep(LOOK_S)
        else:
            await self.leaving.wait()

    async def makes_way(self, link: Link, stream: Stream, within_s: float) -> bool:
        """Let the running letters end, so that the closing gives the queue to its owner; False: not now."""
        if await waits_behind(link, self._queue) + 1 > self._presence.known_in_line(self._place):
            # One of an older version gives nothing back, and one that froze would get the letters.
            self._presence.put_off(self._place)
            return False
        end = asyncio.get_running_loop().time() + OTHERS_S
        while stream.held and not self._presence.is_clear(self._place):
            if asyncio.get_running_loop().time() > end or stream.closed or not self.leaving.is_set():
                break
            await asyncio.sleep(LOOK_S)
        if not self.leaving.is_set():
            return False
        held = stream.held
        await stream.hand_over(within_s)
        _log.info("queue.moved", queue=self._queue, held=held, unsettled=stream.held)
        return True

    async def stands_alone(self, link: Link) -> bool:
        """Ask the heir to leave the line; True once nobody else is in it: all letters come back here."""
        self._presence.wants_alone(self._place)
        end = asyncio.get_running_loop().time() + OTHERS_S
        while self._place.alone and await waits_behind(link, self._queue):
            if asyncio.get_running_loop().time() > end:
                self._place.alone = False
                return False
            await asyncio.sleep(LOOK_S)
        return self._place.alone


async def waits_behind(link: Link, queue: str) -> int:
    """Count the other consumers of a queue of which this daemon is one."""
    other = await link.channel()
    try:
        return (await other.declare_queue(queue, passive=True)).consumers - 1
    finally:
        await other.close()
