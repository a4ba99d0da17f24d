"""What lies on the broker: the names of slots, partitions, queues and exchanges, and how they come to be.

What exists is checked, what is missing is made. The topology queue records into how many partitions the
slots are cut, so that all processes do it alike; of its messages the last one counts. A queue that this
process made is left alone for a while and then probed before it is relied upon: a quorum queue that is
younger can lose confirmed letters when the broker is killed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import structlog

import durable
from gateway.errors import MailboxDown, TopologyMismatch
from gateway.queue.mailbox import INBOUND, Topic, outbound
from gateway.queue.rabbitmq.connection import (
    AccessRefused,
    AmqpChannel,
    Differs,
    Link,
    LinkDown,
    Locked,
    NotFound,
    Sending,
    Unroutable,
    headers_of,
)
from session.transcript.key import SLOTS, slot_of

QueueKind = Literal["classic", "quorum"]
# Out of reach; 3.10 takes -1 for "drop at the first return".
DELIVERY_LIMIT = 1_000_000
RECORD_VERSION = 1
# Unknown to older versions, which refuse to start with it.
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
# The header of a message that only shows whether a queue stores.
PROBE = "probe"
# The broker registers a new quorum queue in a table that it saves at the second of its ticks of 500 ms
# that finds it unchanged: a second at most, and a margin for a busy machine.
YOUNG_S = 1.5
PROBE_TIMEOUT_S = 10.0
RECORD_LOOK_S = 1.0
# The longest pauses between looks for a record that others may be reading just now.
HIDDEN_S = (0.05, 0.1, 0.2)
LOCK_RETRY_S = 0.2
FIRST_HINT = (
    "start a session daemon first, whose user may make it, with the same broker.name and broker.partitions; "
    "docs/rabbitmq.md has the rights of each role"
)
STORED_WITHIN_S = 10.0
_log = structlog.get_logger()


def slot_route(slot: int) -> str:
    """Write a slot as the routing key of inbound letters and events: three digits."""
    return f"{slot:03d}"


def partition_of(slot: int, partitions: int) -> int:
    """Say which of ``partitions`` queues serves ``slot``."""
    return slot * partitions // SLOTS


def slots_of(partition: int, partitions: int) -> range:
    """List the slots bound to one partition, in order."""
    first = -(-partition * SLOTS // partitions)
    return range(first, -(-(partition + 1) * SLOTS // partitions))


def preferred_kind(version: str) -> QueueKind:
    """Choose what ``auto`` declares on a broker of this version, where no queue exists yet.

    AMQP does not tell how many nodes a cluster has: before 4.0 a new cluster must be told ``quorum``
    once, by configuration; later processes find its queues and follow.
    """
    major = re.match(r"\d+", version)
    return "quorum" if major and int(major[0]) >= 4 else "classic"


def queue_arguments(kind: QueueKind, *, single_active: bool = False) -> dict[str, bool | int | str]:
    """Return the arguments with which a queue of the gateway is declared."""
    arguments: dict[str, bool | int | str] = {"x-queue-type": kind}
    if kind == "quorum":
        arguments["x-delivery-limit"] = DELIVERY_LIMIT
    if single_active:
        arguments["x-single-active-consumer"] = True
    return arguments


def topology_record(partitions: int) -> bytes:
    """Write the one message of the topology queue: into how many partitions the slots are cut."""
    return json.dumps({"v": RECORD_VERSION, "partitions": partitions, "slots": SLOTS}).encode()


def read_record(body: bytes) -> int | None:
    """Read the number of partitions; None where the message cannot be understood."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("slots") != SLOTS or record.get("v") != RECORD_VERSION:
        return None
    partitions = record.get("partitions")
    return partitions if type(partitions) is int else None


class Names:
    """The names under one ``broker.name``, for ``partitions`` inbound queues."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name, self.partitions = name, partitions
        # Letters from the channels, and replies.
        self.inbound_exchange, self.outbound_exchange = f"{name}.inbound", f"{name}.outbound"
        self.control, self.events = f"{name}.control", f"{name}.events"
        # By the exchange letters get into the queue: who may write to it need not write to all queues.
        self.parked = self.parked_exchange = f"{name}.parked"
        # Where the number of partitions is recorded.
        self.topology = f"{name}.topology"
        # Exclusive queues, which one reader or writer holds.
        self.parked_lock, self.topology_lock = f"{name}.parked.lock", f"{name}.topology.lock"
        # On these all processes rely.
        self.exchanges = (
            (self.inbound_exchange, "direct"),
            (self.outbound_exchange, "direct"),
            (self.parked_exchange, "fanout"),
            (self.control, "fanout"),
            (self.events, "topic"),
        )

    def exchange_of(self, topic: Topic) -> str:
        """Name the exchange over which a topic is told."""
        return self.control if topic == "control" else self.events

    def inbound_queue(self, partition: int) -> str:
        """Name the queue of one partition: two digits, three when there are more than 100."""
        width = 3 if self.partitions > 100 else 2
        return f"{self.name}.inbound.{self.partitions}.{partition:0{width}d}"

    def inbound_queues(self) -> Iterator[tuple[str, range]]:
        """Yield every inbound queue with the slots bound to it."""
        for partition in range(self.partitions):
            yield self.inbound_queue(partition), slots_of(partition, self.partitions)

    def outbound_queue(self, channel: str) -> str:
        """Name the queue of one channel's replies."""
        return f"{self.name}.outbound.{channel}"

    def queues_of(self, box: str) -> list[str]:
        """List the queues that make up a box."""
        if box == INBOUND:
            return [queue for queue, _ in self.inbound_queues()]
        return [f"{self.name}.{box}"]

    def route(self, box: str, key: str) -> tuple[str, str]:
        """Return the exchange and routing key by which a post reaches its box."""
        if box == INBOUND:
            return self.inbound_exchange, slot_route(slot_of(key))
        return self.outbound_exchange, channel_of(box)

    def box_of(self, queue: str) -> str:
        """Tell the box of a queue's name, also of another partition count; what is no queue's is inbound."""
        channel = queue.removeprefix(f"{self.outbound_exchange}.")
        return outbound(channel) if channel != queue and _CHANNEL.fullmatch(channel) else INBOUND

    def way_back(self, queue: str, key: str | None) -> tuple[str, str]:
        """Return exchange and routing key that bring a parked letter back to where it came from.

        A letter without a readable key returns to a slot of its old partition.
        """
        box = self.box_of(queue)
        if box != INBOUND or key is not None:
            return self.route(box, key or "")
        partitions, partition = _partition_in(queue.removeprefix(f"{self.inbound_exchange}."))
        return self.inbound_exchange, slot_route(slots_of(partition, partitions)[0])


def channel_of(box: str) -> str:
    """Return the channel of an outbound box."""
    return box.partition(".")[2]


def _partition_in(tail: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,3})\.(\d{2,3})", tail)
    if found and int(found[2]) < int(found[1]) <= SLOTS:
        return int(found[1]), int(found[2])
    return 1, 0


class Topology:
    """Declares the queues and exchanges of one gateway and remembers which are still to be proven."""

    def __init__(
        self,
        names: Names,
        queue_type: str,
        young_s: float = YOUNG_S,
        *,
        follows: bool = False,
        made: bool = False,
    ) -> None:
        """Touch nothing yet.

        Who ``follows`` only puts inbound letters, whatever the partitions. ``made``: the process that started
        this one has made the inbound queues; only if one is missing later are they declared here.
        """
        self.names, self._follows, self._made = names, follows, made
        self._queue_type, self._young_s = queue_type, young_s
        self._kinds: list[QueueKind] = []
        self._young: dict[str, float] = {}
        # Those whose outbound queue is known to exist.
        self.channels: set[str] = set()

    async def declare(self, link: Link) -> None:
        """Make sure that everything but the outbound queues exists, and is ours.

        Raises:
            TopologyMismatch: another partition count is recorded, or a queue has other arguments.
            LinkDown: the broker went away, or a new queue does not store.
            AccessRefused: something is missing, and this user may not make it.
        """
        self._choose_kind(link.version)
        names = self.names
        async with _Declaring(link) as declaring:
            await self._queue(declaring, names.topology)
            makes = await self._agree(link)
            for exchange, kind in names.exchanges:
                # Made by a process that binds no queue to it, it would lead nowhere, and nobody miss it.
                binds = makes or exchange != names.inbound_exchange
                await self._exchange(declaring, exchange, kind, makes=binds)
            inbound = () if self._made or not makes else names.inbound_queues()
            self._made = False
            for queue, slots in inbound:
                if await self._queue(declaring, queue, single_active=True):
                    channel = await declaring.channel()
                    await channel.bind(queue, names.inbound_exchange, [slot_route(slot) for slot in slots])
            if await self._queue(declaring, names.parked):
                await (await declaring.channel()).bind(names.parked, names.parked_exchange, [""])
        await self._prove_over(link)

    async def declare_outbound(self, link: Link, channel: str) -> None:
        """Make sure that the queue of one channel's replies exists (prove it before use)."""
        queue = self.names.outbound_queue(channel)
        async with _Declaring(link) as declaring:
            # A queue that is there may be a foreign program's own, with other arguments than ours.
            if not await self._exists(declaring, queue):
                await self._queue(declaring, queue)
            if self._kinds[0] == "classic":
                # A classic queue keeps what it confirms from its first moment on, and a probe would only
                # puzzle the foreign program that is waiting for it.
                self._young.pop(queue, None)
            # Whoever may bind there could have the replies of all: an adapter's user leaves it to the daemon
            # that sends the replies.
            with suppress(AccessRefused):
                await (await declaring.channel()).bind(queue, self.names.outbound_exchange, [channel])

    async def prove(self, publish: Callable[[Sending], Awaitable[None]]) -> None:
        """Wait until the queues made here are old enough, then have each store a probe, if that is allowed.

        One that is not there is no fault here.

        Raises:
            LinkDown: one of them does not; it is asked again next time.
        """
        if not self._young:
            return
        young, clock = dict(self._young), asyncio.get_running_loop().time
        await asyncio.sleep(max(young.values()) + self._young_s - clock())
        probes = {queue: asyncio.ensure_future(publish(_probe(queue))) for queue in young}
        try:
            done, _ = await asyncio.wait(probes.values(), timeout=PROBE_TIMEOUT_S)
        finally:
            for probe in probes.values():
                probe.cancel()
        silent = []
        for queue, probe in probes.items():
            error = probe.exception() if probe in done else TimeoutError()
            if isinstance(error, Unroutable):
                # It could not be made, and whoever needs it makes it. Should a declaration whose answer was
                # lost make it after all, it is young from now on.
                self._young[queue] = clock()
            elif not isinstance(error, AccessRefused | None):
                silent.append(queue)
            # A user who may not write to a queue by its name, as that of an adapter, can prove none: its age
            # is all that it can wait for. One that was made anew meanwhile stays young.
            elif self._young.get(queue) == young[queue]:
                del self._young[queue]
        if silent:
            raise LinkDown(f"queues do not store: {', '.join(silent)}")

    async def _prove_over(self, link: Link) -> None:
        channel = await link.channel(confirms=True)
        try:
            await self.prove(channel.publish)
        finally:
            await channel.close()

    def _choose_kind(self, version: str) -> None:
        if self._queue_type == "auto":
            first = preferred_kind(version)
            self._kinds = self._kinds or [first, "quorum" if first == "classic" else "classic"]
        else:
            self._kinds = ["quorum" if self._queue_type == "quorum" else "classic"]

    async def _queue(self, declaring: _Declaring, queue: str, *, single_active: bool = False) -> bool:
        """Say whether it may be declared here; one that is there may be another's to declare."""
        clock = asyncio.get_running_loop().time
        if not await self._exists(declaring, queue):
            # This is noted before the declaration, whose answer may be lost: the queue is young all the same.
            self._young[queue] = clock()
        differs: list[str] = []
        for kind in list(self._kinds):
            arguments: Mapping[str, Any] = queue_arguments(kind, single_active=single_active)
            try:
                await (await declaring.channel()).declare_queue(queue, arguments=arguments)
            except Differs as error:
                # It has the other type: an earlier start made it, or the broker was another version then.
                differs.append(str(error))
                continue
            except AccessRefused as error:
                if self._young.pop(queue, None) is not None:
                    raise AccessRefused(f"{error}, and it is not there yet", hint=FIRST_HINT) from error
                return False
            if queue in self._young:
                self._young[queue] = clock()
            # The kind that the broker has decides for "auto", or two processes would differ.
            self._kinds.sort(key=lambda known: known != kind)
            return True
        # That the type differs is said of one of the types in any case.
        said = next((each for each in differs if "x-queue-type" not in each), differs[-1])
        raise TopologyMismatch(
            f"queue {queue} differs from what broker.queue_type {self._queue_type} says: {said}",
            hint="set broker.queue_type to what the broker has, or let the queue run empty and delete it",
        )

    async def _exists(self, declaring: _Declaring, queue: str) -> bool:
        try:
            await (await declaring.channel()).declare_queue(queue, passive=True)
        except NotFound:
            return False
        return True

    async def _exchange(self, declaring: _Declaring, exchange: str, kind: str, *, makes: bool) -> None:
        try:
            await (await declaring.channel()).declare_exchange(exchange, kind, passive=not makes)
        except NotFound:
            raise LinkDown(f"exchange {exchange} is not there yet", hint=FIRST_HINT) from None
        except AccessRefused as refused:
            try:
                await (await declaring.channel()).declare_exchange(exchange, kind, passive=True)
            except NotFound:
                raise AccessRefused(f"{refused}, and it is not there yet", hint=FIRST_HINT) from refused
        except Differs as error:
            raise TopologyMismatch(
                f"exchange {exchange} exists with another type than {kind}",
                hint="choose another broker.name, or delete that exchange",
            ) from error

    async def _agree(self, link: Link) -> bool:
        """Say whether the inbound queues are this process's to make."""
        try:
            recorded = await self._recorded(link)
        except AccessRefused:
            # Nor may such a user take inbound letters: who only puts them needs no number of partitions.
            return False
        if recorded is None:
            # Another process may be reading the record, which hides it for a moment, or be about to write it.
            async with exclusively(link, self.names.topology_lock):
                recorded = await self._recorded(link)
                if recorded is None:
                    await asyncio.sleep(min(RECORD_LOOK_S, self._young_s))
                    recorded = await _last_record(link, self.names.topology)
                if recorded is None:
                    await self._prove_over(link)
                    recorded = self.names.partitions
                    await _record(link, self.names.topology, recorded)
        if recorded == self.names.partitions:
            return True
        if self._follows:
            return False
        raise TopologyMismatch(
            f"the broker has {recorded} partitions, broker.partitions says {self.names.partitions}",
            hint=f"set broker.partitions = {recorded}; for another number stop the adapters, let the inbound "
            f"queues run empty, stop all processes, and delete these queues and {self.names.topology}",
        )

    async def _recorded(self, link: Link) -> int | None:
        """Read the record, a few times where it is not to be seen.

        After an outage all processes come at once, and hide it from each other: were each to wait as long as
        who may be the first, they would be back one after the other.
        """
        for most_s in HIDDEN_S:
            if (recorded := await _last_record(link, self.names.topology)) is not None:
                return recorded
            await asyncio.sleep(durable.uniform(0, min(most_s, self._young_s)))
        return await _last_record(link, self.names.topology)


def _probe(queue: str) -> Sending:
    return Sending("", queue, b"{}", id=f"probe:{queue}", headers={PROBE: True}, expires=True)


@asynccontextmanager
async def exclusively(link: Link, lock: str, wait_s: float = 30) -> AsyncIterator[None]:
    """Hold an exclusive queue as a lock among processes; it falls when the connection ends.

    Raises:
        MailboxDown: another process held it for ``wait_s``.
    """
    end = asyncio.get_running_loop().time() + wait_s
    while True:
        channel = await link.channel()
        try:
            await channel.declare_queue(lock, exclusive=True)
            break
        except Locked:
            if asyncio.get_running_loop().time() > end:
                raise MailboxDown(f"another process holds {lock}") from None
            await asyncio.sleep(LOCK_RETRY_S)
    try:
        yield
    finally:
        try:
            if not channel.ended.is_set():
                await channel.delete_queue(lock)
        finally:
            await channel.close()


class _Declaring:
    """A channel to declare on, opened anew after a declaration that closed it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: AmqpChannel | None = None

    async def channel(self) -> AmqpChannel:
        if self._channel is None or self._channel.ended.is_set():
            self._channel = await self._link.channel()
        return self._channel

    async def __aenter__(self) -> _Declaring:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._channel is not None:
            await self._channel.close()


async def _last_record(link: Link, queue: str) -> int | None:
    """Read how many partitions are recorded; None: nothing is, or another process is reading it.

    Raises:
        TopologyMismatch: another version wrote it.
        LinkDown: the broker went away.
        AccessRefused: this user may not read it.
    """
    last: bytes | None = None
    channel = await link.channel()
    try:
        while (message := await channel.get(queue)) is not None:
            if PROBE not in headers_of(message):
                last = message.body
    finally:
        await channel.close()
    partitions = read_record(last) if last is not None else None
    if last is not None and partitions is None:
        raise TopologyMismatch(
            f"{queue} holds a record that this version does not know",
            hint="run the version that wrote it, or choose another broker.name",
        )
    return partitions


async def _record(link: Link, queue: str, partitions: int) -> None:
    channel = await link.channel(confirms=True)
    try:
        async with asyncio.timeout(STORED_WITHIN_S):
            await channel.publish(Sending("", queue, topology_record(partitions), id=queue))
    except TimeoutError:
        raise LinkDown("the broker does not store the topology record") from None
    finally:
        await channel.close()
    _log.info("topology.recorded", partitions=partitions)
