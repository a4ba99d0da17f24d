"""The peer of ``relay``, a process of its own: consume, publish confirmed, acknowledge; plain aio-pika.

``python -m bench.bare URL PREFIX`` relays from every ``PREFIX.inbound.NN`` to ``PREFIX.outbound`` until it is
killed, each queue on a channel of its own, as many messages at once as there are.
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika
import uvloop
from aio_pika.abc import AbstractIncomingMessage
from pamqp.common import FieldTable

PARTITIONS, PREFETCH = 16, 1_000


async def declare(url: str, prefix: str) -> None:
    """Declare the relay's queues, of the type of ours."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        single: FieldTable = {"x-queue-type": "classic", "x-single-active-consumer": True}
        for number in range(PARTITIONS):
            await channel.declare_queue(f"{prefix}.inbound.{number:02d}", durable=True, arguments=single)
        plain: FieldTable = {"x-queue-type": "classic"}
        await channel.declare_queue(f"{prefix}.outbound", durable=True, arguments=plain)


async def relay(url: str, prefix: str) -> None:
    """Relay until cancelled."""
    consuming, publishing = await aio_pika.connect(url), await aio_pika.connect(url)
    out = (await publishing.channel(on_return_raises=True)).default_exchange

    async def take(message: AbstractIncomingMessage) -> None:
        reply = aio_pika.Message(
            message.body,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=f"{message.message_id}#reply",
            content_type="application/json",
            headers=message.headers,
        )
        await out.publish(reply, f"{prefix}.outbound")
        await message.ack()

    for number in range(PARTITIONS):
        channel = await consuming.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(f"{prefix}.inbound.{number:02d}", ensure=False)
        await queue.consume(take)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(relay(sys.argv[1], sys.argv[2]))
