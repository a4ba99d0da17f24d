"""Hears control and events on a connection of their own, by one queue for all who listen in this process.

A connection has some two thousand channels, and one more cuts it. Listeners come and go with the clients that
look on: they share one channel, and it is not on the connection that carries the letters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import structlog
from aiormq.abc import DeliveredMessage

from durable import first_of
from gateway.queue.feed import Fanout
from gateway.queue.mailbox import Topic
from gateway.queue.rabbitmq.connection import AmqpChannel, Link, LinkDown, NotFound
from gateway.queue.rabbitmq.topology import Names, slot_route

BOUND_WITHIN_S = 10.0
# Whoever deletes an exchange takes its bindings, and tells nobody.
BINDS_EACH_S = 5.0
EVERY = "#"
# An exchange and a routing key.
Binding = tuple[str, str]
_log = structlog.get_logger()


class ListenQueue:
    """The one queue of a process for what is told.

    Args:
        dial: opens a connection.
        mend: called where an exchange is missing.
    """

    def __init__(self, names: Names, dial: Callable[[], Awaitable[Link]], mend: Callable[[], None]) -> None:
        self._names, self._dial, self._mend = names, dial, mend
        self._listeners = Fanout()
        self._wanted: Counter[Binding] = Counter()
        self._bound: set[Binding] = set()
        self._changed = asyncio.Event()
        self._settled = asyncio.Condition()
        self._slots = {slot_route(slot): slot for slot in range(1000)}

    async def run(self) -> None:
        """Connect once somebody listens, and hear until the connection is lost.

        Raises:
            LinkDown: the connection was lost, or never came about.
        """
        while not self._wanted:
            self._changed.clear()
            await self._changed.wait()
        link = await self._dial()
        try:
            await self._hear(link)
        except NotFound:
            # The exchange is gone, with a reset of the broker perhaps: a later connection finds it anew.
            self._mend()
            raise
        finally:
            self._bound.clear()
            await link.close()

    @asynccontextmanager
    async def listen(
        self, topic: Topic, slots: Collection[int] | None, *, up: bool
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Receive what is told; entered once it is, where the broker is ``up``."""
        wanted = self._bindings(topic, slots)
        async with self._listeners.listen(topic, slots) as heard:
            self._wanted.update(wanted)
            self._changed.set()
            try:
                if up:
                    await self._until_bound(wanted)
                yield heard
            finally:
                self._wanted -= Counter(wanted)
                self._changed.set()

    def _bindings(self, topic: Topic, slots: Collection[int] | None) -> list[Binding]:
        if topic == "control":
            return [(self._names.control, "")]
        if slots is None:
            return [(self._names.events, EVERY)]
        return [(self._names.events, slot_route(slot)) for slot in slots]

    async def _until_bound(self, wanted: list[Binding]) -> None:
        try:
            async with asyncio.timeout(BOUND_WITHIN_S), self._settled:
                await self._settled.wait_for(lambda: self._bound.issuperset(wanted))
        except TimeoutError:
            # What is told may be lost anyway, so a slow broker does not keep its listeners waiting.
            _log.warning("listen.slow_to_bind")

    async def _hear(self, link: Link) -> None:
        channel = await link.channel()
        queue = (await channel.declare_queue("", exclusive=True)).name
        await channel.consume(queue, self._heard, no_ack=True)
        clock = asyncio.get_running_loop().time
        anew_at = clock()
        while True:
            self._changed.clear()
            anew = clock() >= anew_at
            if anew:
                anew_at = clock() + BINDS_EACH_S
            await self._bind(channel, queue, anew=anew)
            await first_of(self._changed.wait(), channel.ended.wait(), timeout_s=anew_at - clock())
            if channel.ended.is_set():
                raise LinkDown(channel.cause or "the connection was lost")

    async def _bind(self, channel: AmqpChannel, queue: str, *, anew: bool) -> None:
        """Bring the bindings to what is wanted: who has left pays for nothing, and nobody waits for that."""
        wanted = set(self._wanted)
        missing = wanted if anew else wanted - self._bound
        for exchange in {exchange for exchange, _ in missing}:
            routes = sorted(route for at, route in missing if at == exchange)
            await channel.bind(queue, exchange, routes)
        left = self._bound - wanted
        # Whoever comes for one of them while it is being unbound has to wait until it is bound again.
        self._bound -= left
        for exchange, route in left:
            await channel.unbind(queue, exchange, route)
        async with self._settled:
            self._bound = wanted
            self._settled.notify_all()

    async def _heard(self, told: DeliveredMessage) -> None:
        topic: Topic = "control" if told.exchange == self._names.control else "events"
        self._listeners.tell(topic, self._slots.get(told.routing_key or "", -1), told.body)
