"""The RabbitMQ mailbox loses nothing when the broker is killed, cut off or full, or when a daemon dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.errors import LetterLost, MailboxDown
from gateway.queue.mailbox import INBOUND, outbound
from gateway.queue.rabbitmq.topology import YOUNG_S
from tests.contracts.posts import ADA, WEB, collect, ids, post, put_all
from tests.gateway.on_rabbit import opened, put_surely, serving, until_ready
from tests.support.broker import Broker
from tests.support.proxy import Proxy
from tests.support.until import until


@pytest.fixture(scope="module")
def fragile() -> Iterator[Broker]:
    """A node to kill; it closes a channel whose oldest letter is 3 seconds old."""
    with Broker(consumer_timeout_ms=3000, check_ms=500) as node:
        yield node


@pytest.fixture
async def proxy(broker: Broker) -> AsyncIterator[Proxy]:
    """A breakable way to the broker: connection 0 publishes, connection 1 consumes."""
    async with Proxy(broker.port) as way:
        yield way


def through(proxy: Proxy) -> str:
    """Return the address of the broker behind the proxy."""
    return f"amqp://guest:guest@127.0.0.1:{proxy.port}/"


# ── the broker dies ───────────────────────────────────────────────────────────────────────────────────────


async def test_young_queues_survive_a_kill(fragile: Broker) -> None:
    """Letters put as soon as a mailbox on an empty broker is ready survive the broker's kill at once."""
    async with opened(fragile.url, "young", queue_type="quorum", young_s=YOUNG_S) as mailbox:
        names = await put_all(mailbox, ADA, 20)
        await mailbox.put(post(ADA, "reply", box=outbound("young")))
        await asyncio.to_thread(fragile.restart)
        await until_ready(mailbox)
        async with mailbox.take(INBOUND) as letters, mailbox.take(outbound("young")) as replies:
            assert ids(await collect(letters, 20)) == names
            assert ids(await collect(replies, 1)) == [f"{ADA}#reply"]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_channel_closed_for_an_old_letter(fragile: Broker, queue_type: str) -> None:
    """The broker closes a channel whose letter is too old: all comes again in order, and can be settled."""
    async with opened(fragile.url, f"old-{queue_type}", queue_type=queue_type) as mailbox:
        # They are put before anybody takes, so that they come all at once.
        names = await put_all(mailbox, ADA, 5)
        async with mailbox.take(INBOUND) as letters:
            held = await collect(letters, 5)
            await mailbox.settle(held[1])
            again = await collect(letters, 4)

            assert ids(again) == [names[0], *names[2:]]
            assert all(letter.suspect for letter in again)
            assert held[0].lost and not held[1].lost
            for letter in again:
                await mailbox.settle(letter)
            assert (await mailbox.depths())[INBOUND].count == 0


# ── the way to the broker ─────────────────────────────────────────────────────────────────────────────────


async def test_away_at_start_is_waited_for(proxy: Proxy, broker_name: str) -> None:
    """A broker that refuses is waited for; meanwhile puts say so, and nothing shows the password."""
    await proxy.refuse()
    url = through(proxy).replace("guest:guest", "guest:s3cr%40t-word")
    async with serving(url, broker_name) as wrong, serving(through(proxy), broker_name) as mailbox:
        with pytest.raises(MailboxDown) as refusal:
            await mailbox.put(post(ADA, 1))
        with pytest.raises(MailboxDown):
            await mailbox.parked()
        await mailbox.tell("events", 1, b"lost")
        assert not mailbox.health().up

        await proxy.resume()
        await until_ready(mailbox)
        await mailbox.put(post(ADA, 1))
        async with asyncio.timeout(20):
            while "password" not in wrong.health().error:
                await asyncio.sleep(0.05)
    assert "s3cr" not in f"{refusal.value}{wrong.health()}"


@pytest.mark.parametrize("number", [0, 1], ids=["publishing", "consuming"])
async def test_cut_of_a_connection(proxy: Proxy, broker_name: str, number: int) -> None:
    """A reset of either connection is mended by itself; only that of the consuming one loses letters."""
    async with (
        opened(through(proxy), broker_name) as mailbox,
        mailbox.take(INBOUND) as letters,
        mailbox.listen("events") as heard,
    ):
        names = await put_all(mailbox, ADA, 3)
        held = await collect(letters, 3)
        proxy.cut(number)
        await until(lambda: not mailbox.health().up, 30)
        await until_ready(mailbox)

        if number == 1:
            with pytest.raises(LetterLost):
                await mailbox.settle(held[0], [post(ADA, "reply", box=WEB)])
            held = await collect(letters, 3)
            assert ids(held) == names
        for letter in held:
            await mailbox.settle(letter)
        await put_surely(mailbox, post(ADA, "next"))
        assert ids(await collect(letters, 1)) == [f"{ADA}#next"]
        hearing = asyncio.create_task(collect(heard, 1))
        while not hearing.done():
            await mailbox.tell("events", 3, b"again")
            await asyncio.wait([hearing], timeout=0.1)
        assert hearing.result() == [b"again"]


async def test_cut_in_mid_put(proxy: Proxy, broker_name: str) -> None:
    """A put whose confirmation was cut off says so; put again it is one letter or a known repeat."""
    async with opened(through(proxy), broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        proxy.black_hole()
        puts = [asyncio.create_task(mailbox.put(post(f"web:{n}", 1))) for n in range(20)]
        await asyncio.wait(puts, timeout=0.1)
        assert not any(put.done() for put in puts)
        proxy.cut()
        await proxy.resume()
        outcome = await asyncio.gather(*puts, return_exceptions=True)
        assert all(isinstance(each, MailboxDown) for each in outcome)

        await until(lambda: not mailbox.health().up, 30)
        await until_ready(mailbox)
        for n in range(20):
            await put_surely(mailbox, post(f"web:{n}", 1))
        await put_surely(mailbox, post("web:0", 2))
        async with asyncio.timeout(20):
            seen: set[str] = set()
            while len(seen) < 21:
                seen.add((await anext(letters)).id)


async def test_a_broker_that_falls_silent_is_given_up(proxy: Proxy, broker_name: str) -> None:
    """In a black hole the letters are lost after a few heartbeats, and come again over a new connection."""
    async with (
        opened(through(proxy), broker_name, heartbeat_s=2) as mailbox,
        mailbox.take(INBOUND) as letters,
    ):
        await put_all(mailbox, ADA, 2)
        held = await collect(letters, 2)
        proxy.black_hole()
        await until(lambda: held[0].lost and not mailbox.health().up, 20)
        await proxy.resume()
        assert ids(await collect(letters, 2)) == ids(held)


# ── the broker takes nothing ──────────────────────────────────────────────────────────────────────────────


async def test_abandoned_put_is_joined(proxy: Proxy, broker_name: str) -> None:
    """A put that was cancelled goes on; putting it again joins it, and stores nothing twice."""
    async with opened(through(proxy), broker_name) as mailbox, mailbox.take(INBOUND) as letters:
        proxy.black_hole()
        put = asyncio.create_task(mailbox.put(post(ADA, 1)))
        await asyncio.wait([put], timeout=0.1)
        put.cancel()
        again = asyncio.create_task(mailbox.put(post(ADA, 1)))
        behind = asyncio.create_task(mailbox.put(post(ADA, 2)))
        await asyncio.wait([again, behind], timeout=0.1)
        await proxy.resume()
        await asyncio.gather(again, behind)

        assert ids(await collect(letters, 2)) == [f"{ADA}#1", f"{ADA}#2"]
