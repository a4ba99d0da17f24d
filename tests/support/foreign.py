"""Programs of another kind on the same broker: plain aio-pika, what a message looks like, no code of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aio_pika

PUT_S = 150


def slot(key: str) -> str:
    """The routing key of a conversation, computed as a foreign program would."""
    return f"{zlib.crc32(key.encode()) % 256:03d}"


def inbound(key: str, id: str, text: str, **fields: Any) -> bytes:
    """An Inbound as a foreign program writes it: the required fields and no more."""
    channel, _, chat_id = key.partition(":")
    body = {"v": 1, "id": id, "key": key, "channel": channel, "chat_id": chat_id, "text": text, **fields}
    return json.dumps(body).encode()


async def _exchange(connection: Any, name: str) -> Any:
    channel = await connection.channel(on_return_raises=True)
    return await channel.get_exchange(f"{name}.inbound", ensure=False)


async def _publish(exchange: Any, body: bytes, headers: Mapping[str, Any] | None = None) -> None:
    """Publish one body, mandatory and confirmed."""
    message = json.loads(body)
    letter = aio_pika.Message(body, message_id=message["id"], delivery_mode=2, headers=dict(headers or {}))
    await exchange.publish(letter, routing_key=slot(message["key"]))


async def put(url: str, body: bytes, *, name: str = "chat", headers: Mapping[str, Any] | None = None) -> None:
    """Publish one body as a foreign program would, over a connection of its own."""
    async with await aio_pika.connect(url) as connection:
        await _publish(await _exchange(connection, name), body, headers)


class Steady:
    """A careful foreign program: it puts again until confirmed, takes all the time, and outlives its broker.

    ``replies`` holds what came from ``outbound.<channel>``, in order, repeats included; ``times`` tells when.
    ``published`` counts how often each id was said: a broker that did not confirm may have it all the same.
    """

    def __init__(self, url: str, *, name: str = "chat", channel: str = "foreign") -> None:
        self.replies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.published: Counter[str] = Counter()
        self._url = url
        self._name = name
        self._from = channel
        self._came = asyncio.Condition()
        self._exchange: Any = None
        self._entering = asyncio.Lock()
        self._putting: Any = None
        self._taking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Steady:
        self._taking = asyncio.create_task(self._take(), name="foreign taker")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._taking is not None
        self._taking.cancel()
        await asyncio.wait([self._taking])
        await self._leave()

    async def put(self, body: bytes) -> None:
        """Return when the broker has confirmed it, however often it had to be said."""
        async with asyncio.timeout(PUT_S):
            while not await self._put(json.loads(body)["id"], body):
                await self._leave()
                await asyncio.sleep(0.1)

    async def _put(self, id: str, body: bytes) -> bool:
        try:
            async with asyncio.timeout(10):
                exchange = await self._enter()
                self.published[id] += 1
                await _publish(exchange, body)
        # Its library raises even the bare one where a connection breaks.
        except Exception:  # noqa: BLE001
            return False
        return True

    async def answered(self, *ids: str, within_s: float = 90) -> dict[str, str]:
        """Wait until each of these ids has come; return their texts, the first of each."""
        async with asyncio.timeout(within_s), self._came:
            await self._came.wait_for(lambda: set(ids) <= {reply["id"] for reply in self.replies})
        return {reply["id"]: reply["text"] for reply in reversed(self.replies) if reply["id"] in ids}

    def told(self, id: str) -> list[str]:
        return [reply["text"] for reply in self.replies if reply["id"] == id]

    async def _enter(self) -> Any:
        async with self._entering:
            if self._exchange is None:
                self._putting = await aio_pika.connect(self._url)
                self._exchange = await _exchange(self._putting, self._name)
            return self._exchange

    async def _leave(self) -> None:
        connection, self._putting, self._exchange = self._putting, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.close(), 2)

    async def _take(self) -> None:
        while True:
            try:
                async with await aio_pika.connect(self._url) as connection:
                    channel = await connection.channel()
                    queue = await channel.declare_queue(f"{self._name}.outbound.{self._from}", passive=True)
                    # A connection that was lost keeps what was sent over it until the broker sees that: who
                    # takes beside it gets what is newer first.
                    async with queue.iterator(exclusive=True) as letters:
                        async for letter in letters:
                            await letter.ack()
                            await self._note(letter)
            except Exception:  # noqa: BLE001
                await asyncio.sleep(0.1)

    async def _note(self, letter: Any) -> None:
        if "probe" not in letter.headers:
            async with self._came:
                self.replies.append(json.loads(letter.body))
                self.times.append(time.time())
                self._came.notify_all()


@asynccontextmanager
async def foreign(url: str, *, name: str = "chat") -> AsyncIterator[ForeignClient]:
    """A program of another kind on the same broker: it puts inbound and takes outbound."""
    async with await aio_pika.connect(url) as connection:
        yield ForeignClient(connection, await _exchange(connection, name), name)


class ForeignClient:
    """Plain aio-pika, no code of ours."""

    def __init__(self, connection: Any, exchange: Any, name: str) -> None:
        self._connection, self._exchange, self._name = connection, exchange, name

    async def put(self, body: bytes) -> None:
        await _publish(self._exchange, body)

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
