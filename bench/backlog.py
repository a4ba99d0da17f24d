"""A backlog of letters in RabbitMQ, laid before anybody takes it, and a clock on the replies.

No third process takes part while it is worked off, so that the cores belong to the broker and to what is
measured.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aio_pika

from bench.application import letter
from bench.place import TEXT
from gateway.queue.mailbox import Post
from gateway.queue.rabbitmq.topology import partition_of, slot_route
from session.transcript.key import slot_of
from tests.support.harness import ROOT

NAME = "chat"
OUT = f"{NAME}.outbound.bench"
STILL_S = 120
# So many chats publish at once.
PUBLISHERS = 200
# What a look may be late, of the time that was measured until then.
LOOK = 0.01


@dataclass(frozen=True)
class Backlog:
    """``each`` letters in each of ``keys`` chats; the clock runs from reply ``first`` to reply ``last``.

    What comes before ``first`` is start-up: of the program, and of files that are new.
    """

    keys: int
    each: int
    first: int
    last: int

    def posts(self) -> list[list[Post]]:
        """The letters of each key, in order."""
        return [
            [letter(f"bench:{key}", number, f"{number} {TEXT}") for number in range(self.each)]
            for key in range(self.keys)
        ]

    async def lay(self, url: str, route: Callable[[Post], tuple[str, str]]) -> None:
        """Lay it into the queues, round by round over the keys: confirmed, one unconfirmed letter a key."""
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            lines = iter(self.posts())

            async def publish() -> None:
                for line in lines:
                    for post in line:
                        exchange, routing_key = route(post)
                        to = (
                            await channel.get_exchange(exchange, ensure=False)
                            if exchange
                            else channel.default_exchange
                        )
                        message = aio_pika.Message(
                            post.body, delivery_mode=2, message_id=post.id, headers={"key": post.key}
                        )
                        await to.publish(message, routing_key)

            await asyncio.gather(*(publish() for _ in range(min(PUBLISHERS, self.keys))))

    async def clocked(self, url: str, queue: str) -> float:
        """Return the replies per second in ``queue`` between the first one that counts and the last."""
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            first, began, moved, before = 0, 0.0, time.perf_counter(), -1
            while True:
                count = (
                    await channel.declare_queue(queue, passive=True)
                ).declaration_result.message_count or 0
                now = time.perf_counter()
                if not began and count >= self.first:
                    first, began = count, now
                if count >= self.last:
                    return (count - first) / (now - began)
                if count != before:
                    moved, before = now, count
                elif now - moved > STILL_S:
                    raise RuntimeError(
                        f"{queue}: {count} of {self.last} replies, and no more for {STILL_S} s"
                    )
                # Each look costs this process and the broker a part of the cores that are measured.
                await asyncio.sleep(min(max((now - began) * LOOK, 0.01), 0.2) if began else 0.01)


def of_ours(post: Post) -> tuple[str, str]:
    """Route a letter as an adapter does."""
    return f"{NAME}.inbound", slot_route(slot_of(post.key))


def of_relay(prefix: str, partitions: int) -> Callable[[Post], tuple[str, str]]:
    """Route a letter to the queue of a bare relay, straight."""

    def route(post: Post) -> tuple[str, str]:
        return "", f"{prefix}.inbound.{partition_of(slot_of(post.key), partitions):02d}"

    return route


async def declare_out(url: str) -> None:
    """Make the queue of the replies, which nobody takes."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(OUT, durable=True, arguments={"x-queue-type": "classic"})
        await queue.bind(f"{NAME}.outbound", "bench")


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """Keep a relay running while the context is open; it is killed at the end."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()
