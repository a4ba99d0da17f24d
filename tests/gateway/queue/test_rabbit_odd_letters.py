"""Messages with properties that no client can decode: each is read as far as possible, and nothing stops."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
from aiormq.abc import DeliveredMessage

from gateway.queue.mailbox import CARRIED_MAX_CHARS, INBOUND, ParkedAs, Post, carried, carried_in, outbound
from gateway.queue.rabbitmq.connection import Link, Sending, Unroutable
from tests.contracts.posts import ADA, collect, post
from tests.gateway.on_rabbit import foreign, opened
from tests.support.broker import Broker
from tests.support.foreign import slot
from tests.support.guarantee import guarantee

pytestmark = guarantee("failures", "A message with malformed AMQP properties does not stop the gateway.")

MARK = "PLACE-OF-ODD-BYTES"
ODD = {
    "text that is no UTF-8": ("id", b"\xff" * len(MARK)),
    "an id that grows as it is read": ("long id", b"\xff" * len(MARK)),
    "a header name that is no UTF-8": ("name", b"\xfe" * len(MARK)),
    "a time after the end of time": ("time", struct.pack(">Q", 2**63)),
}
TIME = 4_102_444_801
# A message with it still fits a frame of 128 KiB.
LARGE_KEY = 130_000
# So does one with this; with what a reply has beside it, none does.
LARGE_TRACE = 130_890
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


class Rewriter:
    """Forwards a connection and replaces the mark, or the marked time, by bytes that no client would send."""

    def __init__(self, target: int, old: bytes, new: bytes) -> None:
        self._target, self._old, self._new = target, old, new
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._open, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()

    async def _open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_broker = await asyncio.open_connection("127.0.0.1", self._target)
        self._pumps.add(asyncio.create_task(self._pump(reader, to_broker[1])))
        self._pumps.add(asyncio.create_task(self._pump(to_broker[0], writer)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data.replace(self._old, self._new))
            await writer.drain()
        writer.close()


# The mark stands where the odd bytes are to stand.
MARKED: dict[str, dict[str, Any]] = {
    "id": {"message_id": MARK},
    "long id": {"message_id": MARK * 10},
    "name": {"headers": {MARK: "x"}},
    "time": {"timestamp": TIME},
}


async def put_odd(broker: Broker, name: str, what: str) -> None:
    """Put one of the odd messages into Ada's partition."""
    place, odd = ODD[what]
    old = struct.pack(">Q", TIME) if place == "time" else MARK.encode()
    async with Rewriter(urlsplit(broker.url).port or 0, old, odd) as port:
        url = broker.url.replace(f":{urlsplit(broker.url).port}", f":{port}")
        async with foreign(url) as client:
            exchange = await client.get_exchange(f"{name}.inbound", ensure=False)
            message = aio_pika.Message(b"odd", delivery_mode=2, **MARKED[place])
            await exchange.publish(message, routing_key=slot(ADA))


async def put_large(broker: Broker, name: str, **headers: str) -> None:
    """Put a message with these headers, which fill a frame, into Ada's partition."""
    async with foreign(broker.url) as client:
        exchange = await client.get_exchange(f"{name}.inbound", ensure=False)
        large = aio_pika.Message(b"large", headers=dict(headers), delivery_mode=2)
        await exchange.publish(large, routing_key=slot(ADA))


@pytest.mark.parametrize("what", ODD)
async def test_an_odd_letter_is_taken_like_any_other(broker: Broker, broker_name: str, what: str) -> None:
    async with opened(broker.url, broker_name) as mailbox:
        await put_odd(broker, broker_name, what)
        await mailbox.put(post(ADA, 1))

        async with mailbox.take(INBOUND) as letters:
            first, second = await collect(letters, 2)

            assert (first.body, second.id) == (b"odd", post(ADA, 1).id)
            await mailbox.park(first, ParkedAs(None, "odd", 0))
            await mailbox.settle(second)
        (parked,) = await mailbox.parked()
        assert parked.body == b"odd"


async def test_a_key_that_fills_a_frame_is_left_out_of_the_parked_letter(
    broker: Broker, broker_name: str
) -> None:
    """With what parking adds its headers would need more than a frame, over which the broker hangs up."""
    async with opened(broker.url, broker_name) as mailbox:
        await put_large(broker, broker_name, key="k" * LARGE_KEY)
        async with mailbox.take(INBOUND) as letters:
            (letter,) = await collect(letters, 1)
            assert letter.key == "k" * LARGE_KEY
            async with asyncio.timeout(30):
                await mailbox.park(letter, ParkedAs(letter.key, "r" * 2000, 0))

        (parked,) = await mailbox.parked()
        assert (parked.key, parked.body) == (None, b"large")


async def test_a_trace_that_fills_a_frame_goes_no_further(broker: Broker, broker_name: str) -> None:
    """With what a reply has of its own its headers would need more than a frame."""
    async with opened(broker.url, broker_name) as mailbox:
        await put_large(broker, broker_name, key=ADA, traceparent=TRACE, tracestate="x" * LARGE_TRACE)
        async with mailbox.take(INBOUND) as letters, mailbox.take(outbound("web")) as replies:
            (letter,) = await collect(letters, 1)
            carries = carried.set(letter.headers)
            try:
                reply = Post(outbound("web"), ADA, f"web:{'i' * 60}#reply", b"{}")
            finally:
                carried.reset(carries)
            async with asyncio.timeout(30):
                await mailbox.put(reply)
            (came,) = await collect(replies, 1)

            assert letter.headers == came.headers == {"traceparent": TRACE}


@pytest.mark.parametrize(
    "value",
    [
        *("x" * (CARRIED_MAX_CHARS + 1), "\u00e4=1", "a=\ud800", "a=\0", "a=1\r\nb: 2"),
        *(b"a=1", bytearray(b"a=1"), None, True, 7, ["a=1"], {"a": "1"}),
    ],
)
def test_what_is_no_trace_is_not_carried(value: object) -> None:
    assert carried_in({"traceparent": TRACE, "tracestate": value}) == {"traceparent": TRACE}
    assert carried_in({"traceparent": value, "tracestate": "a=1"}) == {"tracestate": "a=1"}


def test_a_trace_as_long_as_any_may_be_is_carried() -> None:
    whole = {"traceparent": TRACE, "tracestate": ("a=1,\t" + "b=2, " * 200)[:CARRIED_MAX_CHARS]}

    assert carried_in({**whole, "key": ADA}) == whole


@pytest.fixture
async def link(broker: Broker) -> AsyncIterator[Link]:
    opened = await Link.open(broker.url, title="test", heartbeat_s=10)
    yield opened
    await opened.close()


async def test_a_delivery_that_breaks_ends_nothing_but_itself(link: Link) -> None:
    """The library would close the connection of all other letters, and this one would come again."""
    came: list[bytes] = []
    all_came = asyncio.Event()

    async def sink(message: DeliveredMessage) -> None:
        came.append(message.body)
        if message.body == b"odd":
            raise RuntimeError("a body that nobody thought of")
        all_came.set()

    channel = await link.channel()
    queue = (await channel.declare_queue("", exclusive=True)).name
    await channel.consume(queue, sink, no_ack=True)
    for body in (b"odd", b"sound"):
        await channel.publish(Sending("", queue, body))
    async with asyncio.timeout(30):
        await all_came.wait()

    assert came == [b"odd", b"sound"]
    assert not link.ended.is_set()


async def test_each_message_of_one_pass_has_its_own_outcome(link: Link) -> None:
    """What comes back is known as such before its confirmation is, however the broker's answers come in."""
    channel = await link.channel(confirms=True)
    queue = (await channel.declare_queue("", exclusive=True)).name
    stored = [bool(number % 3) for number in range(300)]
    sent = [
        channel.publish(Sending("", queue if known else "nowhere", b"{}", id=str(number)))
        for number, known in enumerate(stored)
    ]
    async with asyncio.timeout(30):
        ended = await asyncio.gather(*sent, return_exceptions=True)

    assert [one is None for one in ended] == stored
    assert {type(one) for one in ended if one is not None} == {Unroutable}
    assert (await channel.declare_queue(queue, passive=True, exclusive=True)).ready == sum(stored)


async def test_a_message_that_cannot_be_written_shifts_no_outcome(link: Link) -> None:
    """What was never sent is not counted: each later message has its own confirmation."""
    channel = await link.channel(confirms=True)
    queue = (await channel.declare_queue("", exclusive=True)).name
    with pytest.raises(UnicodeEncodeError):
        await channel.publish(Sending("", queue, b"{}", id="broken", headers={"key": "\ud800"}))
    with pytest.raises(UnicodeEncodeError):
        await channel.publish(Sending("", "\ud800", b"{}", id="lost"))
    sent = [
        channel.publish(Sending("", route, b"{}", id=f"{number}"))
        for number, route in enumerate((queue, "nowhere", queue))
    ]
    async with asyncio.timeout(10):
        ended = await asyncio.gather(*sent, return_exceptions=True)

    assert [type(one) for one in ended] == [type(None), Unroutable, type(None)]
