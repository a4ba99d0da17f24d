"""How many letters of a queue are out: more where all are, within bytes, and each key stays in order."""

from __future__ import annotations

import os
import signal

import pytest
from structlog.testing import capture_logs

from gateway.queue.mailbox import INBOUND
from gateway.queue.rabbitmq.topology import grows_live
from gateway.queue.rabbitmq.window import (
    FIRST_WINDOW,
)
from tests.contracts.posts import collect
from tests.gateway.on_rabbit import KEYS, by_key, fill, held_by_a_victim, opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "order", "The number of messages in flight grows with the backlog, and each chat keeps its order."
)

CROWD = FIRST_WINDOW + 700


# -- the figure ------------------------------------------------------------------------------------


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
