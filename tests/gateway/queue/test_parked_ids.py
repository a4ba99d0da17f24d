"""Anybody may publish different messages under one id: parked together, none takes the place of another."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post
from tests.contracts.posts import ADA, BOB, WEB, collect
from tests.gateway.embedded_place import opened as embedded
from tests.gateway.on_rabbit import opened as rabbit
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

pytestmark = guarantee("loss", "Different messages that are parked under one id are all kept.")


async def _parked_at_once(mailbox: Mailbox) -> None:
    posts = [
        Post(INBOUND, ADA, "same", b"a"),
        Post(INBOUND, BOB, "same", b"b"),
        Post(WEB, ADA, "same", b"a"),
    ]
    for each in posts:
        await mailbox.put(each)
    async with mailbox.take(INBOUND) as letters, mailbox.take(WEB) as replies:
        taken = [*await collect(letters, 2), *await collect(replies, 1)]
        parkings = [mailbox.park(letter, ParkedAs(None, "odd", 0)) for letter in taken]
        await asyncio.gather(*parkings)

    found = await mailbox.parked()
    assert sorted((each.box, each.body) for each in found) == sorted((each.box, each.body) for each in posts)


async def test_on_rabbitmq(broker: Broker, broker_name: str) -> None:
    async with rabbit(broker.url, broker_name) as mailbox:
        await _parked_at_once(mailbox)


async def test_in_the_embedded_queue(tmp_path: Path) -> None:
    async with embedded(tmp_path) as mailbox:
        await _parked_at_once(mailbox)
