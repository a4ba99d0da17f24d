"""Names and arguments of everything that lies on the broker: slots, partitions, queues, exchanges. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gateway.queue.mailbox import INBOUND, Topic, outbound
from session.transcript.key import SLOTS, slot_of

QueueKind = Literal["classic", "quorum"]
# Out of reach; 3.10 takes -1 for "drop at the first return".
DELIVERY_LIMIT = 1_000_000
RECORD_VERSION = 1
# Unknown to older versions, which refuse to start with it.
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,31}")


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


@dataclass(frozen=True, slots=True)
class Names:
    """The names under one ``broker.name``, for ``partitions`` inbound queues."""

    name: str
    partitions: int

    @property
    def inbound_exchange(self) -> str:
        """The direct exchange of letters from the channels."""
        return f"{self.name}.inbound"

    @property
    def outbound_exchange(self) -> str:
        """The direct exchange of replies."""
        return f"{self.name}.outbound"

    @property
    def exchanges(self) -> tuple[tuple[str, str], ...]:
        """The exchanges on which all processes rely, each with its type."""
        return (
            (self.inbound_exchange, "direct"),
            (self.outbound_exchange, "direct"),
            (self.parked_exchange, "fanout"),
            (self.control, "fanout"),
            (self.events, "topic"),
        )

    @property
    def control(self) -> str:
        """The fan-out exchange of control messages."""
        return f"{self.name}.control"

    @property
    def events(self) -> str:
        """The topic exchange of events."""
        return f"{self.name}.events"

    @property
    def parked(self) -> str:
        """The queue of letters set aside."""
        return f"{self.name}.parked"

    @property
    def parked_exchange(self) -> str:
        """The exchange by which letters get there: who may write to it need not write to all queues."""
        return f"{self.name}.parked"

    @property
    def parked_lock(self) -> str:
        """The exclusive queue that its one reader holds."""
        return f"{self.name}.parked.lock"

    @property
    def topology(self) -> str:
        """The queue that records the partition count."""
        return f"{self.name}.topology"

    @property
    def topology_lock(self) -> str:
        """The exclusive queue that its one writer holds."""
        return f"{self.name}.topology.lock"

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
