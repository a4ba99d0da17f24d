"""Opens RabbitMQ mailboxes for tests, and speaks to the broker as a foreign program does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import aio_pika
from aio_pika.abc import AbstractChannel

from gateway.errors import MailboxDown
from gateway.queue.mailbox import INBOUND, Letter, Mailbox, Post
from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.mailbox import RabbitMailbox
from gateway.queue.rabbitmq.wire import Sending

SERVING: dict[RabbitMailbox, asyncio.Task[None]] = {}


@asynccontextmanager
async def serving(url: str, name: str, **options: object) -> AsyncIterator[RabbitMailbox]:
    """Serve a mailbox until the context is left, or ``vanish`` was called; it may not be ready yet."""
    settings: dict[str, object] = {"partitions": 4, "young_s": 0.0, **options}
    mailbox = RabbitMailbox(url, name=name, **settings)  # type: ignore[arg-type]
    SERVING[mailbox] = asyncio.create_task(mailbox.serve(), name="serve")
    try:
        yield mailbox
    finally:
        await vanish(mailbox)


@asynccontextmanager
async def opened(url: str, name: str, **options: object) -> AsyncIterator[RabbitMailbox]:
    """As ``serving``, entered when the mailbox is ready."""
    async with serving(url, name, **options) as mailbox:
        await until_ready(mailbox)
        yield mailbox


async def until_ready(mailbox: RabbitMailbox, timeout_s: float = 30) -> None:
    """Return when the mailbox can be used; raise what ended its serving."""
    ready = asyncio.create_task(mailbox.ready())
    async with asyncio.timeout(timeout_s):
        await asyncio.wait([ready, SERVING[mailbox]], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await SERVING[mailbox]


async def vanish(mailbox: RabbitMailbox) -> None:
    """End the serving of ``mailbox``; its takers stay where they are."""
    task = SERVING.pop(mailbox, None)
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def put_surely(mailbox: Mailbox, post: Post) -> int:
    """Put until it is confirmed; return how often that took."""
    for tries in range(1, 10_000):
        try:
            await mailbox.put(post)
        except MailboxDown:
            await mailbox.ready()
            # The link may be down before the mailbox has noticed.
            await asyncio.sleep(0.01)
        else:
            return tries
    raise AssertionError("never confirmed")


def first_seen(letters: Sequence[Letter]) -> dict[str, list[str]]:
    """Group the ids by key, in the order of their first delivery."""
    seen: dict[str, list[str]] = {}
    for letter in letters:
        names = seen.setdefault(letter.id.partition("#")[0], [])
        if letter.id not in names:
            names.append(letter.id)
    return seen


@asynccontextmanager
async def foreign(url: str) -> AsyncIterator[AbstractChannel]:
    """A plain client of another program."""
    connection = await aio_pika.connect(url)
    async with connection:
        yield await connection.channel()


async def send_bare(url: str, exchange: str, route: str, body: bytes) -> None:
    """Publish a message without any property, which aio-pika would not."""
    link = await Link.open(url, title="foreign", heartbeat_s=10)
    channel = await link.channel()
    channel.publish(Sending(exchange, route, body))
    await channel.close()
    await link.close()


__all__ = [
    "INBOUND",
    "first_seen",
    "foreign",
    "opened",
    "put_surely",
    "send_bare",
    "serving",
    "until_ready",
    "vanish",
]
