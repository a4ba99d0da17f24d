"""The mailbox on RabbitMQ: what a deployment uses to run channels and daemons as separate processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

import durable
from durable import first_of
from gateway.errors import MailboxDown, TopologyMismatch
from gateway.queue.feed import BYTES_MAX, HeldBytes
from gateway.queue.mailbox import (
    INBOUND,
    Behind,
    Depth,
    Health,
    InMemory,
    Letter,
    Mark,
    Parked,
    ParkedAs,
    Post,
    Topic,
    outbound,
)
from gateway.queue.rabbitmq.access import NO_FILES, TlsFiles
from gateway.queue.rabbitmq.connection import AccessRefused, Dialer, Link, LinkDown, NotFound, Sending
from gateway.queue.rabbitmq.consumer import QueueReader, RabbitLetter
from gateway.queue.rabbitmq.listen import ListenQueue
from gateway.queue.rabbitmq.parked import ParkedQueue
from gateway.queue.rabbitmq.publisher import ALARM, REFUSED_S, Outbox, Publisher
from gateway.queue.rabbitmq.topology import YOUNG_S, Names, Topology, channel_of, slot_route

LOST_HINT = "start the broker, or correct broker.url"
# First and longest pause between two attempts to connect.
BACK_OFF_S = (0.1, 5.0)
SILENT_HEARTBEATS = 1.5
# What waits is counted as often, until nobody has asked for so long; what is older is shown to nobody.
COUNTED_EACH_S, LOOKED_AT_S, RECENT_S = 5.0, 300.0, 15.0
_log = structlog.get_logger()


class RabbitMailbox:
    """A mailbox over one broker: one connection publishes, one consumes, one listens, each kept up by itself.

    Args:
        url: ``amqp://user:password@host:port/vhost``, or ``amqps``.
        confirm_timeout_s: after which a put counts as not confirmed.
        renew_after_s: age of the oldest unsettled letter at which its channel is opened anew; must stay
            below the broker's ``consumer_timeout`` of 30 minutes.
        young_s: how long a queue made here is left alone before it is relied upon.
        max_bytes: how large the letters may be together that this process holds.
        reports: whether the log says that the broker is away; else only ``health`` does.
        tls: the files of a connection by ``amqps``.
        follows: it takes no inbound letters, and puts them into whatever partitions there are.
        takes: the partitions whose letters it takes, of a worker, whose gateway has set the broker up; None:
            all. No two processes take those of one.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "chat",
        partitions: int = 64,
        queue_type: str = "auto",
        heartbeat_s: int = 10,
        confirm_timeout_s: float = 15,
        renew_after_s: float = 20 * 60,
        young_s: float = YOUNG_S,
        max_bytes: int = BYTES_MAX,
        reports: bool = True,
        tls: TlsFiles = NO_FILES,
        follows: bool = False,
        takes: Collection[int] | None = None,
    ) -> None:
        self._reports = reports
        self._heartbeat_s = heartbeat_s
        self._names = Names(name, partitions)
        self._dial = Dialer(url, name, heartbeat_s, tls).open
        made = takes is not None
        self._topology = Topology(self._names, queue_type, young_s, follows=follows, made=made)
        self._publisher = Publisher(self._dial, self._topology, confirm_timeout_s=confirm_timeout_s)
        self._outbox = Outbox(self._publisher, self._topology, lambda: self._link)
        self._reader = QueueReader(
            self._attached,
            lambda: self._link,
            self._mend,
            HeldBytes(max_bytes),
            renew_after_s=renew_after_s,
        )
        self._parked = ParkedQueue(self._names, self._outbox.send, self._now_attached)
        self._listening = ListenQueue(self._names, lambda: self._dial("listen"), self._publisher.mend)
        self._takes = range(partitions) if takes is None else takes
        self._counts = Counts(self._names, self._topology, self._reader.out, self._now_attached)
        self._link: Link | None = None
        self._consuming, self._publishing = asyncio.Event(), asyncio.Event()
        self._since, self._up = durable.now(), False
        self._error, self._hint = "not connected yet", ""

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self) -> None:
        """Keep the connections up until cancelled.

        Raises:
            TopologyMismatch: the broker is set up for other partitions or queue types.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep("publish", self._publish_once), name="broker publish")
                tasks.create_task(self._keep("consume", self._consume_once), name="broker consume")
                tasks.create_task(self._keep("listen", self._listen_once), name="broker listen")
                tasks.create_task(self._counts.keep_recent(), name="broker count")
        except BaseExceptionGroup as group:
            mismatch = group.subgroup(TopologyMismatch)
            raise mismatch.exceptions[0] if mismatch else group from None

    async def ready(self) -> None:
        """Return once letters can be put and taken."""
        while not (self._publishing.is_set() and self._consuming.is_set()):
            await self._publishing.wait()
            await self._consuming.wait()

    def health(self) -> Health:
        """Say whether it is up now, without credentials."""
        if self._up and self._publisher.blocked:
            return Health(False, self._since, ALARM)
        error, hint = ("", "") if self._up else (self._error, self._hint)
        return Health(self._up, self._since, error, hint)

    async def _keep(self, title: str, once: Callable[[], Coroutine[Any, Any, None]]) -> None:
        first, longest = BACK_OFF_S
        clock = asyncio.get_running_loop().time
        pause_s = first
        while True:
            began = clock()
            try:
                await once()
            except MailboxDown as error:
                say = _log.warning if self._reports and str(error) != self._error else _log.debug
                hint = error.hint or LOST_HINT
                say("broker.lost", connection=title, error=str(error), hint=hint)
                self._note(str(error), hint)
            pause_s = first if clock() - began > longest else min(longest, pause_s * 2)
            # After an outage all processes come back; at the same instant they would overrun the broker.
            await asyncio.sleep(pause_s * durable.uniform(0.5, 1.0))

    async def _publish_once(self) -> None:
        def up() -> None:
            self._publishing.set()
            self._note("")

        try:
            await self._publisher.run(up)
        finally:
            self._publishing.clear()
            self._note("")

    async def _consume_once(self) -> None:
        # The publishing side declares what is consumed here.
        await self._publishing.wait()
        link = await self._dial("consume")
        try:
            self._link = link
            self._consuming.set()
            self._note("")
            await first_of(link.ended.wait(), self._watch(link))
            raise LinkDown("the connection was lost" if link.ended.is_set() else "the broker does not answer")
        finally:
            self._link = None
            self._consuming.clear()
            self._note("")
            await link.close()

    async def _listen_once(self) -> None:
        await self._publishing.wait()
        try:
            await self._listening.run()
        except AccessRefused as error:
            # An adapter's user may be kept from what is told of all chats: it shows no drafts, and works.
            _log.warning("listen.refused", error=str(error), again_s=REFUSED_S)
            await asyncio.sleep(REFUSED_S)

    def _note(self, error: str, hint: str = "") -> None:
        up = self._publishing.is_set() and self._consuming.is_set()
        if error:
            self._error, self._hint = error, hint
        if up != self._up:
            self._up, self._since = up, durable.now()
            if up:
                _log.info("broker.connected")

    async def _attached(self) -> Link:
        while (link := self._link) is None or link.ended.is_set():
            self._consuming.clear()
            await self._consuming.wait()
        return link

    async def _watch(self, link: Link) -> None:
        """Have an exchange that somebody deleted made again; return if the broker does not answer."""
        while not link.ended.is_set():
            try:
                channel = await link.channel()
                while True:
                    for exchange, kind in self._names.exchanges:
                        # The library notices a silent broker after three heartbeats.
                        async with asyncio.timeout(SILENT_HEARTBEATS * self._heartbeat_s):
                            await channel.declare_exchange(exchange, kind, passive=True)
                    await asyncio.sleep(self._heartbeat_s / 4)
            except NotFound:
                self._publisher.mend()
                await asyncio.sleep(self._heartbeat_s / 4)
            except TimeoutError:
                return
            except LinkDown:
                await link.ended.wait()

    async def _mend(self, box: str) -> None:
        """Make a queue that somebody deleted."""
        if box == INBOUND:
            await self._publisher.restart()
        else:
            self._topology.channels.discard(channel_of(box))
            await self._outbox.open(channel_of(box))

    def _now_attached(self) -> Link:
        if self._link is None or self._link.ended.is_set():
            raise MailboxDown("no connection to the broker")
        return self._link

    # ── letters ───────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, post: Post) -> None:
        """Return when the broker has stored ``post`` durably.

        Raises:
            MailboxDown: not confirmed; put it again under the same id.
        """
        exchange, route = self._names.route(post.box, post.key)
        self._counts.note_put(post.box)
        await self._outbox.send(
            (post.box, post.key),
            Sending(exchange, route, post.body, id=post.id, headers={**post.headers, "key": post.key}),
        )

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        """Open the queues of the box that are this process's; leaving the context closes them.

        What is unsettled goes back.
        """
        if box == INBOUND:
            queues = [self._names.inbound_queue(partition) for partition in self._takes]
        else:
            queues = self._names.queues_of(box)
            # Without the broker, the queue is made when it is back.
            with suppress(MailboxDown):
                await self._outbox.open(channel_of(box))
        async with self._reader.take(box, queues) as letters:
            yield letters

    async def settle(
        self, letter: Letter, puts: Sequence[Post] = (), *, behind: Behind | None = None
    ) -> None:
        """Have ``puts`` confirmed, then acknowledge ``letter``.

        Raises:
            MailboxDown: the puts are not confirmed, and the letter is not removed.
            LetterLost: the puts are durable, the letter comes again.
        """
        if behind is not None:
            await behind.durable()
        # A crash before the acknowledgement repeats the letter; the other order would lose its reply.
        for post in puts:
            await self.put(post)
        await _own(letter).ack()

    async def park(self, letter: Letter, listed: ParkedAs, *, mark: Mark | None = None) -> None:
        """Store ``letter`` among the parked ones, await ``mark``, then acknowledge it.

        Raises:
            MailboxDown: not confirmed; the letter is where it was.
            LetterLost: it is parked, and comes again all the same.
        """
        # A crash in between leaves it parked and in its queue, where the mark tells that it is done with.
        await self._parked.park(_own(letter), listed)
        if mark is not None:
            await mark()
        await _own(letter).ack()

    async def parked(self) -> list[Parked]:
        """List the parked letters, oldest first.

        Raises:
            MailboxDown: the broker is away, or another process reads them for long.
        """
        return await self._parked.all()

    async def replay(self, id: str, *, key: str | None = None) -> Parked | None:
        """Put a parked letter back at the end of its box; None where none has that id (and key).

        Raises:
            LookupError: several have it; name the key.
            MailboxDown: not confirmed; it is still parked.
        """
        return await self._parked.replay(id, key)

    async def drop(self, id: str, *, key: str | None = None) -> Parked | None:
        """Remove a parked letter for good; as ``replay``."""
        return await self._parked.drop(id, key)

    # ── what is told ──────────────────────────────────────────────────────────────────────────────────────

    async def tell(self, topic: Topic, slot: int, body: bytes) -> None:
        """Send to whoever listens now; never raises for a broker that is away."""
        # What is dropped is worth nothing later: who listens asks anew, and replies are durable.
        self._publisher.tell(self._names.exchange_of(topic), slot_route(slot), body)

    @asynccontextmanager
    async def listen(
        self, topic: Topic, slots: Collection[int] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Receive what is told on ``topic``; entered once listening, where the broker is up."""
        async with self._listening.listen(topic, slots, up=self._link is not None) as heard:
            yield heard

    # ── figures ───────────────────────────────────────────────────────────────────────────────────────────

    async def is_drained(self) -> bool:
        """Say whether no inbound letter waits or is worked on; no, too, where other processes take letters.

        Raises:
            MailboxDown: the broker is away.
        """
        inbound = (await self.depths())[INBOUND]
        return inbound.count == 0 and inbound.takers == self._reader.opened(INBOUND)

    async def depths(self, channels: Collection[str] = (), *, recent: bool = False) -> Mapping[str, Depth]:
        """Count what waits on the broker, and what this process works on, by box.

        Of the outbound boxes those that this process has used, and those of ``channels``. The ``recent`` ones
        are up to ``RECENT_S`` seconds old while somebody asks for them again and again.

        Raises:
            MailboxDown: the broker is away.
        """
        return await (self._counts.recent(channels) if recent else self._counts.all(channels))

    async def waiting(self, message_id: str) -> None:
        """Return None: a broker shows a letter to nobody but who takes it."""

    def in_memory(self) -> InMemory:
        """Say what of the letters this process holds, and how much it may."""
        return self._reader.in_memory()


def _own(letter: Letter) -> RabbitLetter:
    if not isinstance(letter, RabbitLetter):
        raise TypeError("a letter of another mailbox")
    return letter


class Counts:
    """Counts boxes, and remembers since when letters of a channel wait that nobody takes.

    Args:
        out: says how many letters of a box this process works on.
        attached: returns the connection.
    """

    def __init__(
        self, names: Names, topology: Topology, out: Callable[[str], int], attached: Callable[[], Link]
    ) -> None:
        self._names, self._topology, self._out, self._attached = names, topology, out, attached
        self._first_put: dict[str, datetime] = {}
        self._channels: Collection[str] = ()
        self._looked, self._looked_at = asyncio.Event(), 0.0
        self._counted: Mapping[str, Depth] = {}
        self._counted_at = -RECENT_S

    async def keep_recent(self) -> None:
        """Count again and again what waits, while somebody looks at it."""
        while True:
            if durable.monotonic() - self._looked_at > LOOKED_AT_S:
                self._looked.clear()
                await self._looked.wait()
            await asyncio.sleep(COUNTED_EACH_S)
            with suppress(MailboxDown):
                await self._count()

    async def recent(self, channels: Collection[str]) -> Mapping[str, Depth]:
        """Return what was counted some seconds ago, or count; as ``all``."""
        self._channels, self._looked_at = channels, durable.monotonic()
        self._looked.set()
        # A broker that is away is known at once.
        self._attached()
        if self._looked_at - self._counted_at > RECENT_S:
            await self._count()
        age_s = durable.monotonic() - self._counted_at
        return {box: replace(depth, age_s=age_s) for box, depth in self._counted.items()}

    async def _count(self) -> None:
        self._counted = await self.all(self._channels)
        self._counted_at = durable.monotonic()

    def note_put(self, box: str) -> None:
        """Note that this process put something into a box."""
        if box != INBOUND and box not in self._first_put:
            self._first_put[box] = durable.now()

    async def all(self, channels: Collection[str]) -> Mapping[str, Depth]:
        """Count what waits, by box; of the outbound ones those used here, and those of ``channels``.

        Raises:
            MailboxDown: the broker is away.
        """
        link = self._attached()
        boxes = {INBOUND: self._names.queues_of(INBOUND)}
        for name in sorted(self._topology.channels.union(channels)):
            boxes[outbound(name)] = self._names.queues_of(outbound(name))
        boxes["parked"] = [self._names.parked]
        counts: dict[str, Depth] = {}
        for box, queues in boxes.items():
            channel = await link.channel()
            try:
                states = [await channel.declare_queue(queue, passive=True) for queue in queues]
                ready = sum(state.ready for state in states)
                takers = sum(state.consumers for state in states)
                counts[box] = Depth(ready + self._out(box), self._alone_since(box, ready, takers), takers)
            except NotFound:
                # Nobody ever served this channel, so that it has no queue.
                counts[box] = Depth(0)
            finally:
                await channel.close()
        return counts

    def _alone_since(self, box: str, ready: int, takers: int) -> datetime | None:
        """Tell since when letters wait in an outbound box that nobody takes from, as far as was looked."""
        if not box.startswith(outbound("")) or takers or not ready:
            self._first_put.pop(box, None)
            return None
        looked_before = box in self._first_put
        since = self._first_put.setdefault(box, durable.now())
        # What other processes put has waited for longer than this one knows.
        return since if looked_before or channel_of(box) in self._topology.channels else None
