"""Programs of another kind on the same broker: plain aio-pika, what a message looks like, no code of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika

from tests.chaos.foreign import PUT_S, Steady, inbound, put, slot

__all__ = ["PUT_S", "ForeignClient", "Steady", "foreign", "inbound", "put", "slot"]


@asynccontextmanager
async def foreign(url: str, *, name: str = "chat") -> AsyncIterator[ForeignClient]:
    """A program of another kind on the same broker: it puts inbound and takes outbound."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        yield ForeignClient(connection, channel, name)


class ForeignClient:
    """Plain aio-pika, no code of ours."""

    def __init__(self, connection: Any, channel: Any, name: str) -> None:
        self._connection = connection
        self._channel = channel
        self._name = name

    async def put(self, body: bytes) -> None:
        """Publish, mandatory and confirmed."""
        message = json.loads(body)
        exchange = await self._channel.get_exchange(f"{self._name}.inbound", ensure=False)
        await exchange.publish(
            aio_pika.Message(body, message_id=message["id"], delivery_mode=2),
            routing_key=slot(message["key"]),
        )

    async def collect(self, channel: str, wanted: int, *, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Take from ``outbound.<channel>`` until ``wanted`` different ids of replies came; all that came."""
        taken: list[dict[str, Any]] = []
        async with asyncio.timeout(timeout_s):
            queue = await self._queue(f"{self._name}.outbound.{channel}")
            async for message in queue.iterator():
                await message.ack()
                if "probe" in message.headers:
                    continue
                taken.append(json.loads(message.body))
                if len({one["id"] for one in taken}) >= wanted:
                    break
        return taken

    async def _queue(self, name: str) -> Any:
        """Look for a queue until the first reply to its channel has made it; the caller has the deadline."""
        while True:
            channel = await self._connection.channel()
            try:
                return await channel.declare_queue(name, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                await asyncio.sleep(0.1)
