"""Reads what the broker sends many frames at a time, and makes one of the three frames of a delivery."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands, constants, decode, frame, heartbeat
from pamqp.exceptions import PAMQPException

from gateway.queue.rabbitmq.wire import BrokerMessage

READ_BYTES = 2**16
_HEAD, _TAG = struct.Struct(">BHI"), struct.Struct(">QB")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = struct.pack(">HH", 60, 60)
_END = 0xCE
_CONTENT, _LENGTH = struct.Struct(">HHQH"), struct.Struct(">I")
_HEADERS, _DELIVERY_MODE, _PRIORITY, _MESSAGE_ID = 0x2000, 0x1000, 0x0800, 0x0080
# Content type and encoding.
_PASSED_BEFORE = (0x8000, 0x4000)
# Correlation id, reply-to, expiration.
_PASSED_BETWEEN = (0x0400, 0x0200, 0x0100)
_LONG_TEXT = ord("S")
# As the library hands them on: kind, channel, what it says.
Frame = tuple[int, int, Any]


class Whole(commands.Basic.Deliver):
    """A delivery with its content."""

    def __init__(self, delivery: BrokerMessage) -> None:
        self.delivery = delivery


@dataclass(slots=True)
class _Open:
    """A delivery that has begun to come in."""

    tag: int
    redelivered: bool
    sent_with: bytes = b""
    id: str = ""
    headers: Mapping[str, object] = field(default_factory=dict)
    left: int = 0
    pieces: list[bytes] = field(default_factory=list)

    def take_header(self, data: bytes) -> None:
        """Read size, headers and id; the properties between are passed over, those behind not looked at."""
        _, _, self.left, flags = _CONTENT.unpack_from(data)
        at = _CONTENT.size
        for flag in _PASSED_BEFORE:
            if flags & flag:
                at += 1 + data[at]
        if flags & _HEADERS:
            size, self.headers = _table(data, at)
            at += size
        at += bool(flags & _DELIVERY_MODE) + bool(flags & _PRIORITY)
        if flags & _MESSAGE_ID:
            for flag in _PASSED_BETWEEN:
                if flags & flag:
                    at += 1 + data[at]
            self.id = data[at + 1 : at + 1 + data[at]].decode("utf-8", "replace")

    def whole(self) -> Whole:
        body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        return Whole(BrokerMessage(self.tag, self.redelivered, self.id, self.headers, body, self.sent_with))


class Frames(FrameReceiver):
    """The frames of a connection that is logged in, for the library's own reader."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._rest = b""
        self._ready: deque[Frame] = deque()
        self._open: dict[int, _Open] = {}

    async def __anext__(self) -> Frame:
        while not self._ready:
            try:
                data = await self.reader.read(READ_BYTES)
            except OSError as error:
                raise AMQPConnectionError(f"Server communication error: {error!r}") from error
            if not data:
                raise AMQPConnectionError("Server connection unexpectedly closed")
            self._take(self._rest + data if self._rest else data)
            # A part of a large body is a sign of life, too.
            if not self._ready:
                self._ready.append((constants.FRAME_HEARTBEAT, 0, heartbeat.Heartbeat()))
        return self._ready.popleft()

    def _take(self, data: bytes) -> None:
        """Take in all whole frames of ``data``."""
        at, end = 0, len(data)
        while end - at >= _HEAD.size:
            kind, channel, size = _HEAD.unpack_from(data, at)
            start = at + _HEAD.size
            stop = start + size
            if stop >= end:
                break
            if data[stop] != _END:
                raise InvalidFrameError("a frame without its end")
            self._take_one(kind, channel, data, start, stop)
            at = stop + 1
        self._rest = data[at:]

    def _take_one(self, kind: int, channel: int, data: bytes, start: int, stop: int) -> None:
        delivery = self._open.get(channel)
        if kind == _METHOD and data.startswith(_DELIVER, start):
            tag_at = start + 5 + data[start + 4]
            tag, redelivered = _TAG.unpack_from(data, tag_at)
            self._open[channel] = _Open(tag, redelivered & 1 == 1, data[tag_at + _TAG.size : stop])
            return
        if delivery is None or kind not in (_HEADER, _BODY):
            self._open.pop(channel, None)
            self._ready.append(_read(data[start - _HEAD.size : stop + 1]))
            return
        if kind == _HEADER:
            delivery.take_header(data[start:stop])
        else:
            delivery.pieces.append(data[start:stop])
            delivery.left -= stop - start
        if delivery.left <= 0:
            del self._open[channel]
            self._ready.append((_METHOD, channel, delivery.whole()))


def _table(data: bytes, at: int) -> tuple[int, Mapping[str, object]]:
    """Read a table, and how many bytes it takes; one of plain texts, such as ours, takes the shortest way."""
    (size,) = _LENGTH.unpack_from(data, at)
    next_at, end = at + 4, at + 4 + size
    found: dict[str, object] = {}
    try:
        while next_at < end:
            named = next_at + 1 + data[next_at]
            if data[named] != _LONG_TEXT:
                break
            (length,) = _LENGTH.unpack_from(data, named + 1)
            name, next_at = data[next_at + 1 : named].decode(), named + 5 + length
            found[name] = data[named + 5 : next_at].decode()
        if next_at == end:
            return 4 + size, found
    except (UnicodeDecodeError, IndexError, struct.error):
        pass
    table = decode.TABLE_MAPPING[b"F"](data[at:end])[1]
    return 4 + size, table if isinstance(table, dict) else {}


def _read(raw: bytes) -> Frame:
    try:
        _, channel, said = frame.unmarshal(raw)
    except PAMQPException as error:
        raise InvalidFrameError(str(error)) from error
    return raw[0], channel, said
