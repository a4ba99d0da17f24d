"""A peer of ``rates``, run by an interpreter that has FastStream: the bare relay in that framework.

``faststream_relay.py URL PREFIX`` relays from every ``PREFIX.inbound.NN`` to ``PREFIX.outbound`` until it is
killed: as durable as the bare relay, the reply confirmed before the letter is acknowledged.
"""

import asyncio
import sys

import uvloop
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

PARTITIONS, PREFETCH = 16, 1_000


def relay(url: str, prefix: str) -> FastStream:
    broker = RabbitBroker(url, logger=None)

    async def take(body: bytes, message: RabbitMessage) -> None:
        await broker.publish(
            body,
            f"{prefix}.outbound",
            persist=True,
            message_id=f"{message.message_id}#reply",
            content_type="application/json",
            headers={"key": message.headers["key"]},
        )

    for number in range(PARTITIONS):
        queue = RabbitQueue(f"{prefix}.inbound.{number:02d}", declare=False)
        policy = {"ack_policy": AckPolicy.NACK_ON_ERROR, "decoder": whole}
        broker.subscriber(queue, channel=Channel(prefetch_count=PREFETCH), **policy)(take)
    return FastStream(broker, logger=None)


async def whole(message: RabbitMessage) -> bytes:
    """Hand the body on as it is, as the bare relay does."""
    return message.body


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(relay(sys.argv[1], sys.argv[2]).run())
