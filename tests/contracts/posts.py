"""The small builders that the tests of mailboxes speak in: posts, and what is taken and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from gateway.queue.mailbox import INBOUND, Letter, Mailbox, Parked, ParkedAs, Post, outbound

T = TypeVar("T")
ADA, BOB, WEB = "web:ada", "web:bob", outbound("web")
DEADLINE_S = 30.0


def post(key: str, number: int | str, *, box: str = INBOUND, body: bytes | None = None) -> Post:
    """Build a post whose id and body both name ``key`` and ``number``."""
    name = f"{key}#{number}"
    return Post(box, key, name, name.encode() if body is None else body)


async def put_all(mailbox: Mailbox, key: str, count: int) -> list[str]:
    """Put the letters 0, 1, 2, … of ``key`` one after the other; return their ids."""
    for number in range(count):
        await mailbox.put(post(key, number))
    return [post(key, number).id for number in range(count)]


async def collect(source: AsyncIterator[T], count: int) -> list[T]:
    """Take exactly ``count`` letters, or hear as many messages, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(source) for _ in range(count)]


async def pass_through(mailbox: Mailbox, letters: AsyncIterator[Letter], *, keys: int, each: int) -> None:
    """Put letters of many keys while they are settled side by side: none is missing, all are in order."""
    came: dict[str, list[str]] = {f"web:{number}": [] for number in range(keys)}
    async with asyncio.TaskGroup() as tasks:
        puts = {key: tasks.create_task(put_all(mailbox, key, each)) for key in came}
        for _ in range(keys * each):
            (letter,) = await collect(letters, 1)
            came[letter.id.partition("#")[0]].append(letter.id)
            tasks.create_task(mailbox.settle(letter))
    assert came == {key: put.result() for key, put in puts.items()}


async def park_one(mailbox: Mailbox, each: Post, *, key: str | None, reason: str = "poison") -> None:
    """Put ``each`` into its empty box, take it, and park it after two attempts."""
    await mailbox.put(each)
    async with mailbox.take(each.box) as letters:
        (letter,) = await collect(letters, 1)
        await mailbox.park(letter, ParkedAs(key, reason, 2))
    await falls_to(mailbox, each.box, 0)


async def falls_to(mailbox: Mailbox, box: str, count: int) -> None:
    """Wait until ``box`` holds ``count`` letters: a broker counts what is settled for a moment longer."""
    async with asyncio.timeout(DEADLINE_S):
        while (await mailbox.depths())[box].count != count:
            await asyncio.sleep(0.01)


async def lose_one(mailbox: Mailbox) -> Letter:
    """Put a letter, take it, and leave its box without settling it."""
    await put_all(mailbox, ADA, 1)
    async with mailbox.take(INBOUND) as letters:
        return (await collect(letters, 1))[0]


def ids(letters: Sequence[Letter | Parked]) -> list[str]:
    """Name the letters."""
    return [letter.id for letter in letters]
