"""At most 1,000 messages of a queue are out; each chat keeps its order over kills."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.queue.feed import HeldBytes
from gateway.queue.mailbox import INBOUND, Letter, Mailbox
from gateway.queue.rabbitmq.consumer import LETTER_BYTES, PREFETCH, cost_of
from tests.contracts.posts import ADA, BOB, collect, post
from tests.gateway.embedded_place import opened as embedded
from tests.gateway.on_rabbit import KEYS, by_key, fill, held_by_a_victim, opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

pytestmark = guarantee("order", "A large backlog keeps the order of each chat when processes are killed.")

CROWD = PREFETCH + 700
QUEUE_TYPES = pytest.mark.parametrize("queue_type", ["classic", "quorum"])


# -- on the broker ---------------------------------------------------------------------------------


@QUEUE_TYPES
async def test_each_key_keeps_its_order_over_a_kill_and_two_more_processes(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """The killed one held as many as may be; the second settles a few and ends, the third goes on."""

    async def settled(mailbox: Mailbox, letters: AsyncIterator[Letter], count: int) -> list[Letter]:
        taken = []
        while len(taken) < count:
            taken += await collect(letters, 1)
            await mailbox.settle(taken[-1])
        return taken

    async with (
        opened(broker.url, broker_name, queue_type=queue_type) as second,
        opened(broker.url, broker_name, queue_type=queue_type) as third,
    ):
        sent = await fill(second, CROWD)
        async with held_by_a_victim(broker.url, broker_name, take=PREFETCH, settle=5) as pid:
            async with second.take(INBOUND) as letters:
                os.kill(pid, signal.SIGKILL)
                between = await settled(second, letters, 10)
                await second.depths()
            async with third.take(INBOUND) as letters:
                held = await collect(letters, PREFETCH)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(letters), 0.5)
                for letter in held:
                    await third.settle(letter)
                rest = held + await settled(third, letters, CROWD - 15 - PREFETCH)

    # The victim settled the first five, each of another key.
    ended = {key: sent[key][1:] for key in KEYS[:5]}
    assert by_key([*between, *rest]) == sent | ended


async def _reached_behind(mailbox: Mailbox) -> None:
    crowd = PREFETCH - 100
    await asyncio.gather(*(mailbox.put(post(f"{ADA}:{number % 50}", number)) for number in range(crowd)))
    await mailbox.put(post(BOB, "neighbour"))

    async with mailbox.take(INBOUND) as letters:
        held = await collect(letters, crowd + 1)

        assert held[-1].id == post(BOB, "neighbour").id
        assert not any(letter.lost for letter in held)


@QUEUE_TYPES
async def test_hundreds_of_messages_hide_no_neighbour_on_rabbitmq(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """All of it lies in the neighbour's own partition."""
    async with opened(broker.url, broker_name, partitions=1, queue_type=queue_type) as mailbox:
        await _reached_behind(mailbox)


async def test_hundreds_of_messages_hide_no_neighbour_in_the_embedded_queue(tmp_path: Path) -> None:
    async with embedded(tmp_path) as mailbox:
        await _reached_behind(mailbox)


# -- the bytes -------------------------------------------------------------------------------------


def test_a_short_letter_costs_what_its_objects_take() -> None:
    assert cost_of(b"") == cost_of(b"x" * 1024) == LETTER_BYTES == 1024
    assert cost_of(b"x" * 1025) == 1025


BOUND = 16_000
QUEUES = ("a", "b", "c", "d")
SHARE = BOUND // 16 // len(QUEUES)
STEPS = st.tuples(
    st.sampled_from(QUEUES), st.integers(1, SHARE), st.sampled_from(["take", "let go", "leave"])
)


@given(st.lists(STEPS))
def test_all_queues_stay_within_the_bytes_and_each_has_its_share(steps: list[tuple[str, int, str]]) -> None:
    held = HeldBytes(BOUND)
    for queue in QUEUES:
        held.join(queue)
    held.add("b", BOUND - BOUND // 16)
    for queue, size, does in steps:
        if does == "leave":
            held.leave(queue)
            held.join(queue)
        elif does == "let go":
            held.add(queue, -min(size, held.of(queue)))
        elif held.takes(queue, size):
            held.add(queue, size)

        assert held.total == sum(held.of(each) for each in QUEUES) <= BOUND
        assert all(held.bound_of(each) >= SHARE for each in QUEUES)
