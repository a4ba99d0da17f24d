"""However many listen, the connection that carries the letters is theirs alone, and nobody misses a thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from gateway.queue.mailbox import INBOUND
from gateway.queue.rabbitmq.connection import Link
from tests.contracts.posts import ADA, collect, post
from tests.gateway.on_rabbit import opened
from tests.support.broker import Broker
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "loss", "Event listeners never use the connection that carries messages, however many they are."
)

CHANNELS_OF_A_CONNECTION = 2047


async def test_more_listeners_than_a_connection_has_channels_cut_no_letter(
    broker: Broker, broker_name: str
) -> None:
    """Clients look on by the thousand; the letter that is being worked on stays ours."""
    async with AsyncExitStack() as stack:
        mailbox = await stack.enter_async_context(opened(broker.url, broker_name))
        await mailbox.put(post(ADA, 1))
        letters = await stack.enter_async_context(mailbox.take(INBOUND))
        (letter,) = await collect(letters, 1)

        heard: list[AsyncIterator[bytes]] = []
        for number in range(CHANNELS_OF_A_CONNECTION + 60):
            slots = {number % 256}
            heard.append(await stack.enter_async_context(mailbox.listen("events", slots)))
        await mailbox.tell("events", 7, b"seven")

        async with asyncio.timeout(30):
            assert [await anext(heard[number]) for number in (7, 7 + 256)] == [b"seven", b"seven"]
        assert not letter.lost
        await mailbox.settle(letter)
        assert (await ctl(broker, "list_channels", "pid")).count("<") < 40


async def test_listeners_that_come_and_go_leave_no_binding_behind(broker: Broker, broker_name: str) -> None:
    """Who has left pays for nothing; who comes later hears."""
    async with opened(broker.url, broker_name) as mailbox, mailbox.listen("events", {1}) as first:
        for number in range(2, 50):
            async with mailbox.listen("events", {number}):
                pass
        async with mailbox.listen("events", {77}) as last:
            await mailbox.tell("events", 3, b"three")
            await mailbox.tell("events", 77, b"last")
            await mailbox.tell("events", 1, b"first")

            assert await collect(last, 1) == [b"last"]
            assert await collect(first, 1) == [b"first"]
            async with asyncio.timeout(30):
                while len(await bindings(broker, f"{broker_name}.events")) > 2:
                    await asyncio.sleep(0.1)
        assert await bindings(broker, f"{broker_name}.events")


async def test_who_comes_while_the_last_one_is_leaving_hears(broker: Broker, broker_name: str) -> None:
    """As the next request of a client: what is just being unbound is bound again before it is counted on."""
    async with opened(broker.url, broker_name) as mailbox, mailbox.listen("events", {1}):
        for number in range(100):
            async with mailbox.listen("events", {2}):
                pass
            # After so many rounds of the loop the unbinding is on its way, and not yet answered.
            for _ in range(number % 10):
                await asyncio.sleep(0)
            async with mailbox.listen("events", {2}) as heard:
                await mailbox.tell("events", 2, b"%d" % number)
                assert await collect(heard, 1) == [b"%d" % number]


async def test_listeners_hear_again_after_their_connection_was_cut(broker: Broker, broker_name: str) -> None:
    """All that was bound is bound again, and letters go on meanwhile."""
    async with opened(broker.url, broker_name) as mailbox, mailbox.listen("events", {5}) as heard:
        pids = (await ctl(broker, "list_connections", "pid", "client_properties")).splitlines()
        (pid,) = (line.split("\t")[0] for line in pids if f"{broker_name} listen" in line)
        await ctl(broker, "close_connection", pid, "cut by a test")

        async with asyncio.timeout(30):
            hearing = asyncio.ensure_future(anext(heard))
            while not hearing.done():
                await mailbox.tell("events", 5, b"again")
                await asyncio.wait((hearing,), timeout=0.1)
        assert hearing.result() == b"again"
        await mailbox.put(post(ADA, 1))


async def ctl(broker: Broker, *arguments: str) -> str:
    """Ask the broker, in a thread: a loop that stands still for long loses its connections."""
    return await asyncio.to_thread(broker.ctl, *arguments)


async def bindings(broker: Broker, exchange: str) -> list[str]:
    """List the routing keys that are bound to an exchange."""
    rows = (await ctl(broker, "list_bindings", "source_name", "routing_key")).splitlines()
    return [row.split("\t")[1] for row in rows if row.startswith(f"{exchange}\t")]


async def test_a_channel_gets_the_smallest_number_that_is_free(broker: Broker) -> None:
    """A number above what was agreed may cut the connection, however few channels are open."""
    before = await channels(broker)
    link = await Link.open(broker.url, title="test", heartbeat_s=10)
    try:
        first, _ = await link.channel(), await link.channel()
        await first.close()
        await link.channel()

        assert sorted(number for _, number in await channels(broker) - before) == ["1", "2"]
    finally:
        await link.close()


async def channels(broker: Broker) -> set[tuple[str, str]]:
    """List the open channels: who serves each, and its number."""
    rows = (await ctl(broker, "list_channels", "pid", "number")).splitlines()
    return {(pid, number) for pid, _, number in (row.partition("\t") for row in rows if row.startswith("<"))}
