"""Programs of another kind on the same broker: plain aio-pika, what a message looks like, no code of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Mapping
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


async def put(url: str, body: bytes, *, name: str = "chat", headers: Mapping[str, Any] | None = None) -> None:
    """Publish one body as a foreign program would, again until the broker confirms it."""
    message = json.loads(body)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(f"{name}.inbound", ensure=False)
        await exchange.publish(
            aio_pika.Message(body, message_id=message["id"], delivery_mode=2, headers=dict(headers or {})),
            routing_key=slot(message["key"]),
        )


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
        message = json.loads(body)
        async with asyncio.timeout(PUT_S):
            while not await self._put(message, body):
                await self._leave()
                await asyncio.sleep(0.1)

    async def _put(self, message: Mapping[str, Any], body: bytes) -> bool:
        try:
            async with asyncio.timeout(10):
                exchange = await self._enter()
                letter = aio_pika.Message(body, message_id=message["id"], delivery_mode=2)
                self.published[message["id"]] += 1
                await exchange.publish(letter, routing_key=slot(message["key"]))
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
        """Return the texts that came under an id, repeats included."""
        return [reply["text"] for reply in self.replies if reply["id"] == id]

    async def _enter(self) -> Any:
        async with self._entering:
            if self._exchange is None:
                self._putting = await aio_pika.connect(self._url)
                channel = await self._putting.channel(on_return_raises=True)
                self._exchange = await channel.get_exchange(f"{self._name}.inbound", ensure=False)
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
