"""Frames as they come from a socket, and those that are written by hand, against the library's own codec."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import body, commands, frame, header, heartbeat

from gateway.queue.rabbitmq import lenient
from gateway.queue.rabbitmq.frames import Frames, Whole
from gateway.queue.rabbitmq.leased import Connection
from gateway.queue.rabbitmq.wire import BrokerMessage, Sending, ack_frame, content_frames

lenient.install()


def delivery(channel: int, tag: int, content: bytes, *, piece: int = 131_064, **properties: Any) -> bytes:
    """Write a delivery as the broker does."""
    deliver = commands.Basic.Deliver("ctag1.0123", tag, tag % 2 == 0, "chat.inbound", "007")
    head = header.ContentHeader(body_size=len(content), properties=commands.Basic.Properties(**properties))
    pieces = [body.ContentBody(content[at : at + piece]) for at in range(0, len(content), piece)]
    frames: list[Any] = [deliver, head, *pieces]
    return b"".join(frame.marshal(each, channel) for each in frames)


async def read(data: bytes, *cuts: int) -> list[tuple[int, int, Any]]:
    """Feed ``data`` cut at some places, and read all frames of it."""
    reader = asyncio.StreamReader(limit=2**24)
    frames = Frames(reader)
    found: list[tuple[int, int, Any]] = []

    async def take() -> None:
        while True:
            found.append(await anext(frames))

    task = asyncio.create_task(take())
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in pairwise(edges):
        reader.feed_data(data[start:stop])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    reader.feed_eof()
    with pytest.raises(AMQPConnectionError):
        await task
    return [each for each in found if not isinstance(each[2], heartbeat.Heartbeat)]


def split(data: bytes) -> list[bytes]:
    """Return the frames, each by itself."""
    parts = []
    while data:
        size = frame.unmarshal(data)[0]
        parts.append(data[:size])
        data = data[size:]
    return parts


def deliveries(found: list[tuple[int, int, Any]]) -> list[tuple[int, BrokerMessage]]:
    return [(channel, said.delivery) for _, channel, said in found if isinstance(said, Whole)]


async def test_a_delivery_comes_whole_wherever_it_is_cut() -> None:
    """Two channels, an answer in between, a body in pieces, headers of any kind: each as it was sent."""
    tags = {"content_type": "application/json", "delivery_mode": 2}
    headers: dict[str, Any] = {
        "key": "cli:\u00e4",
        "n": 5,
        "flag": True,
        "empty": "",
        "deep": {"a": {"b": "c"}},
    }
    headers["x-death"] = [{"count": 1, "reason": "r"}]
    one = delivery(1, 7, b"x" * 300, piece=100, message_id="m\u00fc", headers=headers, **tags)
    other = delivery(2, 8, b"", message_id="p", priority=3, correlation_id="c", reply_to="r", expiration="9")
    ack = frame.marshal(commands.Basic.Ack(5, True), 3)
    # The frames of two deliveries may alternate; each keeps its own.
    parts = split(one)
    data = b"".join([*parts[:3], ack, other, *parts[3:]])
    expected = [
        (2, BrokerMessage(8, True, "p", {}, b"")),
        (1, BrokerMessage(7, False, "m\u00fc", headers, b"x" * 300)),
    ]
    chance = random.Random(1)
    for _ in range(200):
        cuts = [chance.randrange(len(data)) for _ in range(chance.randrange(6))]

        found = await read(data, *cuts)

        assert deliveries(found) == expected
        [(_, channel, said)] = [each for each in found if not isinstance(each[2], Whole)]
        assert (channel, said.delivery_tag, said.multiple) == (3, 5, True)


async def test_a_part_of_a_large_body_is_a_sign_of_life() -> None:
    """A reader that waits for the rest hears that the broker is there."""
    reader = asyncio.StreamReader()
    data = delivery(1, 1, b"x" * 1000, piece=400, message_id="m")
    reader.feed_data(data[:-500])

    _, channel, said = await anext(Frames(reader))

    assert channel == 0
    assert isinstance(said, heartbeat.Heartbeat)


async def test_what_is_no_frame_ends_the_connection() -> None:
    """A frame without its last byte is refused."""
    reader = asyncio.StreamReader()
    reader.feed_data(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x50\x00")

    with pytest.raises(InvalidFrameError):
        await anext(Frames(reader))


@pytest.mark.parametrize("content", [b"", b"{}", b"x" * 700])
@pytest.mark.parametrize(
    "more",
    [
        {"id": "m#reply", "headers": {"key": "cli:\u00e4"}},
        {"id": "\u00e9" * 100, "headers": {"key": "k", "probe": True, "attempts": 3}},
        {"id": "p", "headers": {"z": "", "traceparent": "00-1", "key": "cli:a"}},
        {"id": "p", "headers": {"\u00e9" * 70: "long", "key": "k"}},
        {"id": "p", "expiration": "0"},
        {"transient": True},
        {},
    ],
)
def test_what_is_written_by_hand_is_what_the_library_writes(content: bytes, more: dict[str, Any]) -> None:
    """Properties and body of a message, and an acknowledgement, byte by byte."""
    sending = Sending("chat.inbound", "007", content, **more)
    headers: Any = sending.headers
    properties = commands.Basic.Properties(
        content_type="application/json",
        headers=headers,
        delivery_mode=1 if sending.transient else 2,
        expiration=sending.expiration,
        message_id=sending.id or None,
    )
    head = header.ContentHeader(body_size=len(content), properties=properties)
    pieces = [body.ContentBody(content[at : at + 300]) for at in range(0, len(content), 300)]
    theirs: list[Any] = [head, *pieces]

    assert content_frames(sending, 9, 300) == b"".join(frame.marshal(each, 9) for each in theirs)
    assert ack_frame(2**40 + 1, 9) == frame.marshal(commands.Basic.Ack(2**40 + 1), 9)


class Ahead:
    """The running loop, with a clock that the test puts forward."""

    def __init__(self) -> None:
        self.by_s = 0.0
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self._loop.time() + self.by_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("heartbeat_s", [2, 3, 4, 5, 10, 60])
async def test_a_silent_broker_is_given_up_before_it_can_hand_on_our_letters(heartbeat_s: int) -> None:
    """Our last sign of life may be as old as the last look at its own, and the next look as far away."""
    clock = Ahead()
    connection = Connection(f"amqp://127.0.0.1/?heartbeat={heartbeat_s}", loop=clock)
    look_s = max(1, heartbeat_s // 2)

    clock.by_s = 2 * heartbeat_s - 2 * look_s - 0.1
    assert connection.is_connection_was_stuck

    clock.by_s = heartbeat_s / 2 + 0.1
    assert not connection.is_connection_was_stuck
