"""A crowd of one chat, none of it worked on: the letter of a neighbour behind it is handed out, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config.settings import LimitsSettings
from gateway.queue.mailbox import INBOUND, Mailbox
from gateway.queue.rabbitmq.window import FIXED_WINDOW
from tests.contracts.posts import ADA, BOB, collect, post
from tests.gateway.embedded_place import opened as embedded
from tests.gateway.on_rabbit import opened as rabbit
from tests.support.broker import Broker

CROWD = LimitsSettings().flood_per_chat + 100


async def _reached_behind(mailbox: Mailbox) -> None:
    await asyncio.gather(*(mailbox.put(post(f"{ADA}:{number % 50}", number)) for number in range(CROWD)))
    await mailbox.put(post(BOB, "neighbour"))

    async with mailbox.take(INBOUND) as letters:
        held = await collect(letters, CROWD + 1)

        assert held[-1].id == post(BOB, "neighbour").id
        assert not any(letter.lost for letter in held)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_crowd_as_large_as_may_be_hides_no_neighbour_on_rabbitmq(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """All of it lies in the neighbour's own partition."""
    async with rabbit(broker.url, broker_name, partitions=1, queue_type=queue_type) as mailbox:
        await _reached_behind(mailbox)


async def test_a_crowd_as_large_as_may_be_hides_no_neighbour_in_the_embedded_queue(tmp_path: Path) -> None:
    async with embedded(tmp_path) as mailbox:
        await _reached_behind(mailbox)


def test_a_daemon_is_handed_more_than_one_chat_may_have_waiting() -> None:
    assert LimitsSettings().flood_per_chat < FIXED_WINDOW
