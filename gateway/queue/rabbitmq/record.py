"""The record of the partitions: what lies in the topology queue, of which the last message counts."""

from __future__ import annotations

import asyncio

import structlog

from gateway.errors import TopologyMismatch
from gateway.queue.rabbitmq.connection import Link, LinkDown, Sending
from gateway.queue.rabbitmq.topology import read_record, topology_record

PROBE = "probe"
STORED_WITHIN_S = 10.0
_log = structlog.get_logger()


async def recorded_last(link: Link, queue: str) -> int | None:
    """Read the record; None: there is none, or another process is reading it.

    Raises:
        TopologyMismatch: a newer version wrote it.
        LinkDown: the broker went away.
        AccessRefused: this user may not read it.
    """
    last: int | None = None
    channel = await link.channel()
    try:
        while (message := await channel.get(queue)) is not None:
            if PROBE not in message.headers:
                last = _read(message.body, queue)
    finally:
        await channel.close()
    return last


async def add_record(link: Link, queue: str, partitions: int) -> None:
    """Have a record stored behind what is there.

    Raises:
        LinkDown: it is not confirmed.
    """
    channel = await link.channel(confirms=True)
    try:
        async with asyncio.timeout(STORED_WITHIN_S):
            body = topology_record(partitions)
            await channel.publish(Sending("", queue, body, id=queue))
    except TimeoutError:
        raise LinkDown("the broker does not store the topology record") from None
    finally:
        await channel.close()
    _log.info("topology.recorded", partitions=partitions)


def _read(body: bytes, queue: str) -> int:
    record = read_record(body)
    if record is None:
        raise TopologyMismatch(
            f"{queue} holds a record that this version does not know",
            hint="run the version that wrote it, or choose another broker.name",
        )
    return record
