"""One chat with many waiting letters and a slow model: what the other chats feel of it, over both brokers.

All 51 keys lie in one partition, the worst case; the extra delay is a neighbour's time from put to reply less
the median of the same without the crowd, measured right before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from zlib import crc32

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.application import application, letter, process, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median, quantile
from gateway.queue.mailbox import Post, outbound
from gateway.queue.rabbitmq.topology import partition_of, slot_route
from session.transcript.key import slot_of
from tests.support.broker import Broker

# How many letters wait, and how long the model takes for one, in seconds.
CROWDS = ((500, 0.05), (4_000, 0.2))
OTHERS, EVERY_S, ROUNDS = 50, 0.02, 4
LIMIT_S, PARTITIONS = 2.0, 16

Put = Callable[[Post], Awaitable[object]]
Opened = Callable[[], AbstractAsyncContextManager[tuple[Put, "Replies"]]]


class Replies:
    """When the reply to each message came."""

    def __init__(self) -> None:
        self._came: dict[str, asyncio.Future[float]] = {}

    def of(self, post: Post) -> asyncio.Future[float]:
        """Return the time at which the reply to ``post`` comes."""
        return self._came.setdefault(post.id, asyncio.get_running_loop().create_future())

    def see(self, body: bytes) -> None:
        """Take note of an Outbound."""
        out = json.loads(body)
        came = self._came.get(out["in_reply_to"])
        if out["kind"] == "reply" and came is not None and not came.done():
            came.set_result(time.perf_counter())


def run() -> list[Row]:
    """Measure over the embedded queue, then over RabbitMQ."""
    rows = []
    for crowd, delay_s in CROWDS:
        with folder() as home, Broker() as broker:
            rows.append(_row("embedded", crowd, partial(_embedded, home / "embedded", delay_s)))
            rows.append(_row("RabbitMQ", crowd, partial(_rabbit, home / "rabbit", broker.url, delay_s)))
    return rows


def _row(title: str, crowd: int, opened: Opened) -> Row:
    alone, beside = run_loop(lambda: _measure(opened, crowd))
    extra = [took - median(alone) for took in beside]
    p99 = quantile(extra, 0.99)
    return Row(
        f"neighbours of {crowd} letters, {title}",
        p99,
        LIMIT_S,
        "s",
        "limit of the p99",
        p99 / LIMIT_S,
        at_most=1,
        notes={
            "what": f"extra delay of {len(beside)} letters of {OTHERS} other keys",
            "p50": f"{median(extra):.3f} s; alone they take {median(alone):.3f} s",
        },
    )


async def _measure(opened: Opened, waiting: int) -> tuple[list[float], list[float]]:
    hot, *others = _keys(OTHERS + 1)
    async with opened() as (put, replies):
        await _round(put, replies, others, "warm")
        alone = await _round(put, replies, others, "alone")
        crowd = [letter(hot, number, f"message {number}") for number in range(waiting)]
        for post in crowd:
            await put(post)
        beside = []
        for number in range(ROUNDS):
            beside += await _round(put, replies, others, f"beside{number}")
        if replies.of(crowd[-1]).done():
            raise RuntimeError("the crowd was gone before its neighbours were measured")
    return alone, beside


async def _round(put: Put, replies: Replies, keys: list[str], name: str) -> list[float]:
    """Send one letter to each key, one after the other; return how long each waited for its reply."""

    async def one(number: int, key: str) -> float:
        await asyncio.sleep(number * EVERY_S)
        post = letter(key, crc32(name.encode()), "hello")
        came = replies.of(post)
        began = time.perf_counter()
        await put(post)
        return await came - began

    return list(await asyncio.gather(*(one(number, key) for number, key in enumerate(keys))))


def _keys(count: int) -> list[str]:
    """Find keys of one partition."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if partition_of(slot_of(f"bench:{number}"), PARTITIONS) == 0:
            found.append(f"bench:{number}")
        number += 1
    return found


@asynccontextmanager
async def _embedded(workspace: Path, delay_s: float) -> AsyncIterator[tuple[Put, Replies]]:
    replies = Replies()
    with_settings = settings(workspace, model__echo_delay_s=delay_s, limits__drain_s=1)
    async with application(with_settings) as here:

        async def listen() -> None:
            async with here.mailbox.take(outbound("bench")) as letters:
                async for each in letters:
                    replies.see(each.body)
                    await here.mailbox.settle(each)

        task = asyncio.create_task(listen(), name="listen")
        yield here.mailbox.put, replies
        task.cancel()


@asynccontextmanager
async def _rabbit(workspace: Path, url: str, delay_s: float) -> AsyncIterator[tuple[Put, Replies]]:
    replies = Replies()
    config = {"broker.url": url, "model.echo_delay_s": delay_s, "limits.drain_s": 1}
    with process(workspace, config):
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            exchange = await channel.get_exchange("chat.inbound", ensure=False)

            async def put(post: Post) -> None:
                message = aio_pika.Message(post.body, delivery_mode=2, message_id=post.id)
                await exchange.publish(message, slot_route(slot_of(post.key)))

            async def see(message: AbstractIncomingMessage) -> None:
                if "probe" not in message.headers:
                    replies.see(message.body)
                await message.ack()

            first = letter(_keys(1)[0], -1, "hello")
            # With its reply the daemon declares the queue of replies.
            await put(first)
            queue = await _queue(connection, "chat.outbound.bench")
            await queue.consume(see)
            yield put, replies


async def _queue(connection: aio_pika.abc.AbstractConnection, name: str) -> aio_pika.abc.AbstractQueue:
    while True:
        channel = await connection.channel()
        try:
            return await channel.get_queue(name, ensure=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            await asyncio.sleep(0.1)
