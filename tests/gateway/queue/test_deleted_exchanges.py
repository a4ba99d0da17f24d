"""An exchange that somebody deleted is made again, and what was bound to it is bound again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from gateway.errors import MailboxDown
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Topic
from gateway.queue.rabbitmq import publisher
from tests.contracts.posts import ADA, BOB, WEB, collect, ids, post
from tests.gateway.on_rabbit import foreign, opened, put_surely
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.until import until

HEALS_WITHIN_S = 30.0


async def delete(broker: Broker, exchange: str) -> None:
    async with foreign(broker.url) as client:
        await client.exchange_delete(exchange)


async def is_there(broker: Broker, exchange: str) -> bool:
    async with foreign(broker.url) as client:
        try:
            await client.get_exchange(exchange)
        except ChannelNotFoundEntity:
            return False
        return True


async def hears(heard: AsyncIterator[bytes], mailbox: Mailbox, topic: Topic, body: bytes) -> None:
    """Tell until it was heard."""

    async def hear() -> None:
        while await anext(heard) != body:
            pass

    hearing = asyncio.create_task(hear())
    try:
        async with asyncio.timeout(HEALS_WITHIN_S):
            while not hearing.done():
                await mailbox.tell(topic, 3, body)
                await asyncio.wait([hearing], timeout=0.1)
        await hearing
    finally:
        hearing.cancel()


async def test_letters_and_replies_are_put_taken_and_set_aside_again(
    broker: Broker, broker_name: str
) -> None:
    """Each exchange is missed by its next message; the queues of before are bound to the new ones."""
    async with (
        opened(broker.url, broker_name) as mailbox,
        mailbox.take(INBOUND) as letters,
        mailbox.take(WEB) as replies,
    ):
        await mailbox.put(post(ADA, 1, box=WEB))
        for name in ("inbound", "outbound", "parked"):
            await delete(broker, f"{broker_name}.{name}")
        async with asyncio.timeout(HEALS_WITHIN_S):
            await put_surely(mailbox, post(ADA, 1))
            await put_surely(mailbox, post(BOB, 1))
            await put_surely(mailbox, post(ADA, 2, box=WEB))
        taken = await collect(letters, 2)

        async def parked() -> bool:
            try:
                await mailbox.park(taken[0], ParkedAs(ADA, "poison", 3))
            except MailboxDown:
                return False
            return True

        await until(parked, HEALS_WITHIN_S)
        assert ids(taken) == [f"{ADA}#1", f"{BOB}#1"]
        assert ids(await collect(replies, 2)) == [f"{ADA}#1", f"{ADA}#2"]
        assert ids(await mailbox.parked()) == [f"{ADA}#1"]


async def test_whoever_takes_makes_the_exchange_of_others(broker: Broker, broker_name: str) -> None:
    """A daemon that puts nothing itself; the adapter knows another number of partitions, and binds none."""
    async with (
        opened(broker.url, broker_name) as daemon,
        opened(broker.url, broker_name, partitions=8, follows=True) as adapter,
        daemon.take(INBOUND) as letters,
    ):
        await delete(broker, f"{broker_name}.inbound")
        async with asyncio.timeout(HEALS_WITHIN_S):
            await put_surely(adapter, post(ADA, 1))

        assert ids(await collect(letters, 1)) == [f"{ADA}#1"]


@pytest.mark.parametrize("topic", ["control", "events"])
async def test_what_is_told_is_heard_again(broker: Broker, broker_name: str, topic: Topic) -> None:
    """By another process, whose queue was bound to the exchange that is gone, and by the telling one."""
    async with (
        opened(broker.url, broker_name) as mailbox,
        opened(broker.url, broker_name) as other,
        mailbox.listen(topic) as own,
        other.listen(topic) as heard,
    ):
        await hears(heard, mailbox, topic, b"before")
        await delete(broker, f"{broker_name}.{topic}")

        await hears(heard, mailbox, topic, b"again")
        await hears(own, mailbox, topic, b"as well")
        await mailbox.put(post(ADA, 1))


async def test_a_topic_that_is_refused_leaves_the_others(
    broker: Broker, broker_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker closes the channel over it; what else is told is heard, once that is tried again."""
    monkeypatch.setattr(publisher, "REFUSED_S", 0.2)
    user = f"teller-{broker_name}"
    broker.user(user, "pw")
    url = broker.url.replace("guest:guest", f"{user}:pw")
    async with opened(broker.url, broker_name) as daemon, daemon.listen("events") as heard:
        broker.ctl(
            "set_permissions", user, ".*", f"^{broker_name}[.](inbound|outbound|parked|events).*", ".*"
        )
        async with opened(url, broker_name) as mailbox:
            await mailbox.tell("control", 3, b"refused")
            await hears(heard, mailbox, "events", b"event")
            await mailbox.put(post(ADA, 1))


@guarantee("loss", "A deleted RabbitMQ exchange is created again without losing a message.")
async def test_a_missing_exchange_costs_no_letter_under_way(broker: Broker, broker_name: str) -> None:
    """That nobody hears events is mended beside the puts, on the connection on which they go."""
    async with opened(broker.url, broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        await delete(broker, f"{broker_name}.events")
        for number in range(200):
            await mailbox.tell("events", 3, b"event")
            await mailbox.put(post(ADA, number))

        assert len(await collect(letters, 200)) == 200
        await until(lambda: is_there(broker, f"{broker_name}.events"), HEALS_WITHIN_S)


async def test_without_its_queue_nothing_is_parked_until_something_is(
    broker: Broker, broker_name: str
) -> None:
    """Whoever deletes it has thrown away what was in it, and no error tells it; the next letter is kept."""
    async with opened(broker.url, broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        async with foreign(broker.url) as client:
            await client.queue_delete(f"{broker_name}.parked")
        assert await mailbox.parked() == []
        assert await mailbox.drop("a") is None

        await put_surely(mailbox, post(ADA, 1))
        (letter,) = await collect(letters, 1)
        async with asyncio.timeout(HEALS_WITHIN_S):
            while True:
                with suppress(MailboxDown):
                    await mailbox.park(letter, ParkedAs(ADA, "refused", 1))
                    break
                await asyncio.sleep(0.1)
        assert [each.id for each in await mailbox.parked()] == [f"{ADA}#1"]
