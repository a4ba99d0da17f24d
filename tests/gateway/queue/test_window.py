"""How many letters of a queue are out: more where all are, within bytes, and each key stays in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.queue.mailbox import INBOUND, Letter, Mailbox
from gateway.queue.rabbitmq.topology import grows_live, partition_of
from gateway.queue.rabbitmq.window import (
    BYTES_MAX,
    FIRST_WINDOW,
    LEAST_GROWTH,
    LETTER_BYTES,
    WINDOW_MAX,
    next_window,
)
from gateway.testing import ADA, collect, post
from session.transcript.key import slot_of
from tests.gateway.on_rabbit import opened
from tests.support.broker import Broker

ROOT = Path(__file__).parents[3]
CROWD = FIRST_WINDOW + 700
BIG = bytes(60_000)


KEYS = [key for key in (f"{ADA}:{number}" for number in range(400)) if partition_of(slot_of(key), 4) == 0][
    :50
]


async def _fill(mailbox: Mailbox, count: int, body: bytes | None = None) -> dict[str, list[str]]:
    """Put letters of many keys of one partition, and list their ids by key."""
    posts = [post(KEYS[number % len(KEYS)], number, body=body) for number in range(count)]
    await asyncio.gather(*(mailbox.put(each) for each in posts))
    sent: dict[str, list[str]] = {}
    for each in posts:
        sent.setdefault(each.key, []).append(each.id)
    return sent


def _by_key(letters: Sequence[Letter]) -> dict[str, list[str]]:
    """List the ids of what came by key, in the order in which it came."""
    came: dict[str, list[str]] = {}
    for letter in letters:
        came.setdefault(str(letter.key), []).append(letter.id)
    return came


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
        sent = await _fill(mailbox, CROWD)
        with capture_logs() as logs:
            async with mailbox.take(INBOUND) as letters, waiting.take(INBOUND):
                held = await collect(letters, CROWD)
                lost = any(letter.lost or letter.suspect for letter in held)

        assert not lost
        assert _by_key(held) == sent
        grown = [log for log in logs if log["event"] == "queue.window_grown"]
        assert [log["window"] for log in grown] == [4 * FIRST_WINDOW]


async def test_big_letters_stay_within_the_bytes_and_all_come_in_order(
    broker: Broker, broker_name: str
) -> None:
    """A window of them is out; the bound is told once; what is settled lets the next ones in."""
    async with opened(broker.url, broker_name, queue_type="classic") as mailbox:
        sent = await _fill(mailbox, FIRST_WINDOW + 300, BIG)
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
        assert _by_key(taken) == sent
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
        sent = await _fill(second, CROWD)
        victim = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "tests.gateway.rabbit_victim", broker.url, broker_name, str(CROWD), "5"],
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert victim.stdout is not None
            async with asyncio.timeout(60):
                while (said := await victim.stdout.readline()) != b"held\n":
                    assert said, "the victim ended early"
            async with second.take(INBOUND) as letters:
                os.kill(victim.pid, signal.SIGKILL)
                between = await collect(letters, 10)
                for letter in between:
                    await second.settle(letter)
                await second.depths()
            async with third.take(INBOUND) as letters:
                rest = await collect(letters, CROWD - 15)
        finally:
            if victim.returncode is None:
                victim.kill()
            await victim.wait()

    # The victim settled the first five, each of another key.
    ended = {key: sent[key][1:] for key in KEYS[:5]}
    assert _by_key([*between, *rest]) == sent | ended
