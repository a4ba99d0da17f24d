"""Letters too large to be held together: some stay with the broker, and come in order afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest

from gateway.queue.mailbox import INBOUND, Letter, Mailbox
from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.contracts.posts import BOB, collect, post
from tests.gateway.on_rabbit import by_key, fill, held_by_a_victim, opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.until import until

# It waits for seconds.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("queue_type", ["classic", "quorum"]),
    guarantee(
        "operation", "Messages take at most 64 MB of memory; larger backlogs wait in the queue, in order."
    ),
]

BOUND = 400_000
COUNT = 120
# Small ones behind large ones: they would be the ones to overtake.
BODIES = [bytes(size) for size in (20_000, 100, 9_000)]


async def _settled(mailbox: Mailbox, letters: AsyncIterator[Letter], count: int) -> list[Letter]:
    """Settle letters one by one as they come, and look each time at how many bytes are in memory."""
    taken: list[Letter] = []
    while len(taken) < count:
        taken += await collect(letters, 1)
        assert mailbox.in_memory().bytes <= BOUND
        await mailbox.settle(taken[-1])
    return taken


async def test_no_more_than_the_bound_is_held_and_all_come_in_order(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    async with opened(broker.url, broker_name, queue_type=queue_type, max_bytes=BOUND) as mailbox:
        sent = await fill(mailbox, COUNT, BODIES)
        async with mailbox.take(INBOUND) as letters:
            taken = await collect(letters, 30)
            depth, held = (await mailbox.depths())[INBOUND], mailbox.in_memory()
            for letter in taken:
                await mailbox.settle(letter)
            taken += await _settled(mailbox, letters, COUNT - 30)
            # A quorum queue applies acknowledgements later, and not all of a channel that is closed.
            await until(partial(_is_empty, mailbox), within_s=30)

        assert by_key(taken) == sent
    # What is declined still counts, and the bytes in memory were just below the bound.
    assert depth.count == COUNT
    assert BOUND * 0.8 < held.bytes <= BOUND == held.max_bytes
    assert 30 <= held.letters < COUNT


async def _is_empty(mailbox: Mailbox) -> bool:
    return (await mailbox.depths())[INBOUND].count == 0


async def test_a_queue_full_of_large_letters_leaves_the_others_theirs(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    assert partition_of(slot_of(BOB), 4) != 0
    async with opened(broker.url, broker_name, queue_type=queue_type, max_bytes=BOUND) as mailbox:
        await fill(mailbox, COUNT, BODIES)
        async with mailbox.take(INBOUND) as letters:
            before = await collect(letters, 30)
            await mailbox.put(post(BOB, "neighbour"))
            while (letter := await anext(letters)).key != BOB:
                before.append(letter)

    assert len(before) < COUNT


async def test_a_kill_while_letters_are_declined_keeps_each_key_in_order(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """The killed one was sent all and held some; the second takes a few and ends, the third goes on."""
    options = {"queue_type": queue_type, "max_bytes": BOUND}
    async with (
        opened(broker.url, broker_name, **options) as second,
        opened(broker.url, broker_name, **options) as third,
    ):
        sent = await fill(second, COUNT, BODIES)
        async with held_by_a_victim(broker.url, broker_name, take=30, settle=0, max_bytes=BOUND) as pid:
            async with second.take(INBOUND) as letters:
                os.kill(pid, signal.SIGKILL)
                between = await _settled(second, letters, 10)
                await second.depths()
            async with third.take(INBOUND) as letters:
                rest = await _settled(third, letters, COUNT - 10)

    assert by_key([*between, *rest]) == sent
