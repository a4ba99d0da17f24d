"""The place of a run's queues on a broker: its own names, which nobody had before and nobody has after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection

import durable
from gateway.errors import GatewayError
from gateway.queue.rabbitmq.topology import Names
from session.disk.local_files import local_state

PARTITIONS = 4
# The name of a gateway that was not told another one.
_OTHERS = "chat"


class NotOurs(GatewayError):
    """The broker holds queues of somebody; nothing was done to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker's address, and the name that begins the names of the queues there."""

    url: str
    name: str

    @property
    def port(self) -> int:
        """The broker's port."""
        return urlsplit(self.url).port or 5672

    @property
    def host(self) -> str:
        """The broker's host."""
        return urlsplit(self.url).hostname or "localhost"

    def by_way_of(self, port: int) -> str:
        """Return the address that leads there over a port of this machine."""
        parts = urlsplit(self.url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}"))

    @property
    def names(self) -> Names:
        """The names of everything that a gateway makes there."""
        return Names(self.name, PARTITIONS)


async def require_empty(place: Place) -> None:
    """Return where nobody's queues are there.

    Raises:
        NotOurs: a gateway has queues there, or another run of this name.
    """
    try:
        async with _connected(place) as connection:
            for name in (_OTHERS, place.name):
                if await _count(connection, Names(name, PARTITIONS).topology) is not None:
                    raise NotOurs(
                        f"the broker holds queues of a gateway whose broker.name is {name}",
                        hint="a virtual host of its own: rabbitmqctl add_vhost chaos",
                    )
    except (OSError, aio_pika.exceptions.AMQPError) as error:
        raise NotOurs(
            f"the broker does not let us in: {type(error).__name__}",
            hint="chat-gateway doctor, with broker.url as given to --url, tells more",
        ) from error


async def letters_left(place: Place) -> dict[str, int]:
    """Return how many letters stay in each queue that is not empty, but for those of foreign programs."""
    found = {}
    queues = [*(queue for queue, _ in place.names.inbound_queues()), place.names.outbound_queue("telegram")]
    async with _connected(place) as connection:
        for queue in queues:
            if count := await _count(connection, queue):
                found[queue] = count
    return found


async def left_behind(place: Place | None, state: Path) -> list[str]:
    """Tell of every letter that stays in the queues of gateways that have ended.

    Args:
        place: where their queues are; None: in a file of their own, the embedded one.
        state: the folder ``state`` of their workspace.
    """
    if place is None:
        return await asyncio.to_thread(_rows_left, state)
    return [f"{count} messages stay in {queue}" for queue, count in (await letters_left(place)).items()]


def _rows_left(state: Path) -> list[str]:
    path = local_state(state) / durable.STATE_FILE
    if not path.exists():
        return ["the queue's file is gone"]
    with durable.reading(path) as file:
        found = file.execute("SELECT name, key, id, seq FROM queue ORDER BY seq").fetchall()
    return [f"message {row} stays in {box}: {name or 'no id'} of {key}" for box, key, name, row in found]


async def removed(place: Place) -> None:
    """Remove all that a run made there."""
    names = place.names
    queues = [queue for queue, _ in names.inbound_queues()]
    queues += [
        names.topology,
        names.parked,
        names.outbound_queue("foreign"),
        names.outbound_queue("telegram"),
    ]
    exchanges = [names.inbound_exchange, names.outbound_exchange, names.control]
    exchanges += [names.events, names.parked_exchange]
    async with _connected(place) as connection:
        channel = await connection.channel()
        for queue in queues:
            await channel.queue_delete(queue)
        for exchange in exchanges:
            await channel.exchange_delete(exchange)


@asynccontextmanager
async def _connected(place: Place) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(place.url, timeout=30)
    async with connection:
        yield connection


async def _count(connection: AbstractConnection, queue: str) -> int | None:
    """Return how many letters wait in a queue; None where there is no such queue."""
    channel: AbstractChannel = await connection.channel()
    try:
        found = await channel.declare_queue(queue, passive=True)
    except aio_pika.exceptions.ChannelNotFoundEntity:
        return None
    count = found.declaration_result.message_count or 0
    await channel.close()
    return count
