"""A queue that cannot be made is told as such, and holds up nothing but what needs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from pamqp.common import FieldTable
from structlog.testing import capture_logs

from gateway.errors import MailboxDown, TopologyMismatch
from gateway.queue.mailbox import INBOUND, outbound
from gateway.queue.rabbitmq.broker import RabbitMailbox
from tests.contracts.posts import ADA, collect, ids, post
from tests.gateway.on_rabbit import foreign, opened, put_surely, serving, until_ready
from tests.support.broker import Broker
from tests.support.until import until

# The record, the parked letters and four partitions.
OWN_QUEUES = 6
SHOP, OTHER = outbound("shop"), outbound("other")


@dataclass(frozen=True)
class Vhost:
    """A virtual host of one test, in which only so many queues may be."""

    broker: Broker
    name: str
    url: str

    async def limit(self, queues: int) -> None:
        await asyncio.to_thread(
            self.broker.ctl, "set_vhost_limits", "-p", self.name, json.dumps({"max-queues": queues})
        )

    async def cut(self) -> None:
        await asyncio.to_thread(self.broker.ctl, "close_all_connections", "-p", self.name, "cut by a test")


@pytest.fixture
async def vhost(broker: Broker, broker_name: str) -> AsyncIterator[Vhost]:
    url = await asyncio.to_thread(broker.vhost, broker_name)
    yield Vhost(broker, broker_name, url)
    await asyncio.to_thread(broker.ctl, "delete_vhost", broker_name)


async def refused(mailbox: RabbitMailbox, box: str) -> MailboxDown:
    with pytest.raises(MailboxDown) as caught:
        await mailbox.put(post(ADA, 1, box=box))
    return caught.value


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_queue_that_was_not_made_holds_up_nothing(vhost: Vhost, queue_type: str) -> None:
    """The first reply to a new channel finds no place for its queue: another one has its own, and the
    connections come up again once they are lost.
    """
    async with opened(vhost.url, "chat", queue_type=queue_type) as mailbox:
        await vhost.limit(OWN_QUEUES)
        await refused(mailbox, SHOP)
        await vhost.limit(OWN_QUEUES + 1)
        await mailbox.put(post(ADA, 2, box=OTHER))
        async with mailbox.take(OTHER) as replies:
            assert ids(await collect(replies, 1)) == [f"{ADA}#2"]

        with capture_logs() as logs:
            await vhost.cut()
            # Both connections may be up again before anybody looks.
            await until(
                lambda: len({log["connection"] for log in logs if log["event"] == "broker.lost"}) == 2
            )
        await until_ready(mailbox)
        await put_surely(mailbox, post(ADA, 1))
        async with mailbox.take(INBOUND) as letters:
            assert ids(await collect(letters, 1)) == [f"{ADA}#1"]

        await vhost.limit(OWN_QUEUES + 2)
        await mailbox.put(post(ADA, 1, box=SHOP))
        async with mailbox.take(SHOP) as replies:
            assert ids(await collect(replies, 1)) == [f"{ADA}#1"]


async def test_a_limit_is_told_as_such_and_waited_for(vhost: Vhost) -> None:
    """At a first start and at a reply, with the broker's number and the command that raises it."""
    await vhost.limit(OWN_QUEUES - 1)
    async with serving(vhost.url, "chat") as mailbox:
        said = await until(lambda: "limit" in mailbox.health().error and mailbox.health())
        assert said.error == f"virtual host '{vhost.name}' has as many queues as its limit allows: 5"
        assert said.hint == f"rabbitmqctl clear_vhost_limits -p {vhost.name}, or set_vhost_limits to more"

        await vhost.limit(OWN_QUEUES)
        await until_ready(mailbox)
        error = await refused(mailbox, SHOP)

    assert str(error).endswith("limit allows: 6")
    assert error.hint == said.hint


async def test_what_differs_is_told_in_the_words_of_the_broker(broker: Broker, broker_name: str) -> None:
    """A queue of the right type that somebody made otherwise: the argument is named."""
    bounded: FieldTable = {"x-queue-type": "classic", "x-max-length": 7}
    async with foreign(broker.url) as client:
        await client.declare_queue(f"{broker_name}.parked", durable=True, arguments=bounded)

    async with serving(broker.url, broker_name) as mailbox:
        with pytest.raises(TopologyMismatch) as refusal:
            await until_ready(mailbox)

    assert str(refusal.value).startswith(
        f"queue {broker_name}.parked differs from what broker.queue_type auto"
    )
    assert "inequivalent arg 'x-max-length'" in str(refusal.value)
