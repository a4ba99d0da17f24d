"""Opens RabbitMQ mailboxes for tests, and speaks to the broker as a foreign program does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.abc import ChannelFrame
from pamqp import commands, header
from pamqp.body import ContentBody

from gateway.errors import MailboxDown
from gateway.queue.mailbox import Letter, Mailbox, Post
from gateway.queue.rabbitmq.broker import RabbitMailbox
from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.contracts.posts import ADA, post
from tests.support import forked

ROOT = Path(__file__).parents[2]
# Fifty keys of one partition of four.
KEYS = [key for key in (f"{ADA}:{number}" for number in range(400)) if partition_of(slot_of(key), 4) == 0][
    :50
]
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
    async with foreign(url) as client:
        channel = await client.get_underlay_channel()
        frames = [
            commands.Basic.Publish(exchange=exchange, routing_key=route),
            header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties()),
            ContentBody(body),
        ]
        await channel.connection.write_queue.put(ChannelFrame.marshall(channel.number, frames))
        # An answer shows that the broker has taken what was written before.
        await client.set_qos(1)


async def fill(
    mailbox: Mailbox, count: int, bodies: Sequence[bytes | None] = (None,)
) -> dict[str, list[str]]:
    """Put letters of many keys of one partition, the bodies in turn, and list their ids by key."""
    posts = [
        post(KEYS[number % len(KEYS)], number, body=bodies[number % len(bodies)]) for number in range(count)
    ]
    await asyncio.gather(*(mailbox.put(each) for each in posts))
    sent: dict[str, list[str]] = {}
    for each in posts:
        sent.setdefault(each.key, []).append(each.id)
    return sent


def by_key(letters: Sequence[Letter]) -> dict[str, list[str]]:
    """List the ids of what came by key, in the order in which it came."""
    came: dict[str, list[str]] = {}
    for letter in letters:
        came.setdefault(str(letter.key), []).append(letter.id)
    return came


@asynccontextmanager
async def held_by_a_victim(
    url: str, name: str, *, take: int, settle: int, max_bytes: int | None = None
) -> AsyncIterator[int]:
    """Have another process take letters, settle the first of them, and hold the rest; give its pid."""
    bound = [] if max_bytes is None else [str(max_bytes)]
    victim = await forked.spawn(
        *[sys.executable, "-m", "tests.gateway.rabbit_victim", url, name, str(take), str(settle), *bound],
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert victim.stdout is not None
        async with asyncio.timeout(60):
            while (said := await victim.stdout.readline()) != b"held\n":
                assert said, "the victim ended early"
        yield victim.pid
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.wait()
