"""How many letters of a queue are out: more where all are, within bytes, and each key stays in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.queue.held import BYTES_MAX
from gateway.queue.mailbox import INBOUND, Letter
from gateway.queue.rabbitmq.topology import grows_live
from gateway.queue.rabbitmq.window import (
    FIRST_WINDOW,
    LEAST_GROWTH,
    LETTER_BYTES,
    WINDOW_MAX,
    next_window,
)
from tests.contracts.posts import collect
from tests.gateway.on_rabbit import KEYS, by_key, fill, held_by_a_victim, opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "order", "The number of messages in flight grows with the backlog, and each chat keeps its order."
)

CROWD = FIRST_WINDOW + 700
BIG = bytes(60_000)


async def _until(true: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.01)


# -- the figure ------------------------------------------------------------------------------------


def test_a_full_window_of_short_letters_grows_fourfold() -> None:
    assert next_window(FIRST_WINDOW, FIRST_WINDOW * 300, FIRST_WINDOW * 300) == 4 * FIRST_WINDOW


def test_a_window_stays_where_other_queues_take_the_bytes() -> None:
    assert next_window(FIRST_WINDOW, FIRST_WINDOW * LETTER_BYTES, BYTES_MAX) == FIRST_WINDOW


@given(
    window=st.integers(FIRST_WINDOW, WINDOW_MAX),
    mean=st.integers(LETTER_BYTES, 1_000_000),
    others=st.integers(0, 2 * BYTES_MAX),
)
def test_growth_keeps_within_the_bound_and_the_protocol(window: int, mean: int, others: int) -> None:
    held = window * mean
    wider = next_window(window, held, held + others)

    assert window <= wider <= min(4 * window, WINDOW_MAX)
    assert wider == window or wider - window >= min(LEAST_GROWTH, 3 * window)
    assert wider == window or held + others + (wider - window) * mean <= BYTES_MAX


@pytest.mark.parametrize(
    ("kind", "version", "live"),
    [
        ("classic", "3.10.8", True),
        ("classic", "3.13.7", True),
        ("classic", "4.1.0", False),
        ("classic", "", False),
        ("quorum", "3.10.8", False),
        (None, "3.10.8", False),
    ],
)
def test_only_a_classic_queue_before_4_grows(kind: str | None, version: str, live: bool) -> None:
    assert grows_live(kind, version) is live  # type: ignore[arg-type]


# -- on the broker ---------------------------------------------------------------------------------


async def test_the_window_grows_while_another_daemon_waits(broker: Broker, broker_name: str) -> None:
    """Nothing is handed over by the growth: each letter is one delivery, all are here, in order."""
    async with (
        opened(broker.url, broker_name, queue_type="classic") as mailbox,
        opened(broker.url, broker_name, queue_type="classic") as waiting,
    ):
        sent = await fill(mailbox, CROWD)
        with capture_logs() as logs:
            async with mailbox.take(INBOUND) as letters, waiting.take(INBOUND):
                held = await collect(letters, CROWD)
                lost = any(letter.lost or letter.suspect for letter in held)

        assert not lost
        assert by_key(held) == sent
        grown = [log for log in logs if log["event"] == "queue.window_grown"]
        assert [log["window"] for log in grown] == [4 * FIRST_WINDOW]


async def test_big_letters_stay_within_the_bytes_and_all_come_in_order(
    broker: Broker, broker_name: str
) -> None:
    """A window of them is out; the bound is told once; what is settled lets the next ones in."""
    async with opened(broker.url, broker_name, queue_type="classic") as mailbox:
        sent = await fill(mailbox, FIRST_WINDOW + 300, [BIG])
        with capture_logs() as logs:
            async with mailbox.take(INBOUND) as letters:
                held = await collect(letters, FIRST_WINDOW)
                await _until(lambda: any(log["event"] == "queue.window_bounded" for log in logs))
                depth = (await mailbox.depths())[INBOUND]
                taken: list[Letter] = []
                for letter in held:
                    taken.append(letter)
                    await mailbox.settle(letter)
                while len(taken) < FIRST_WINDOW + 300:
                    taken.append(await anext(letters))
                    await mailbox.settle(taken[-1])

        assert depth.count == FIRST_WINDOW + 300
        assert by_key(taken) == sent
        assert sum(log["event"] == "queue.window_bounded" for log in logs) == 1
        assert not any(log["event"] == "queue.window_grown" for log in logs)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_each_key_keeps_its_order_over_growth_kill_and_two_more_daemons(
    broker: Broker, broker_name: str, queue_type: str
) -> None:
    """The killed one held more than a first window; the second holds fewer and ends, the third goes on."""
    async with (
        opened(broker.url, broker_name, queue_type=queue_type) as second,
        opened(broker.url, broker_name, queue_type=queue_type) as third,
    ):
        sent = await fill(second, CROWD)
        async with held_by_a_victim(broker.url, broker_name, take=CROWD, settle=5) as pid:
            async with second.take(INBOUND) as letters:
                os.kill(pid, signal.SIGKILL)
                between = await collect(letters, 10)
                for letter in between:
                    await second.settle(letter)
                await second.depths()
            async with third.take(INBOUND) as letters:
                rest = await collect(letters, CROWD - 15)

    # The victim settled the first five, each of another key.
    ended = {key: sent[key][1:] for key in KEYS[:5]}
    assert by_key([*between, *rest]) == sent | ended
