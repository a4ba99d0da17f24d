"""What passes between mailbox and AMQP client: messages and their frames, answers, errors without secrets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp import commands, encode, frame

from gateway.errors import MailboxDown

_TRANSIENT, _PERSISTENT = b"\x01", b"\x02"
_JSON = encode.short_string("application/json")
_HEAD, _CONTENT, _ACK = struct.Struct(">BHI"), struct.Struct(">HHQH"), struct.Struct(">BHIHHQBB")
# Hears what became of a message that was sent: None where it is stored.
Told = Callable[[MailboxDown | None], None]
_LENGTH = struct.Struct(">I")
# Bytes of a header's name.
_NAME_MAX = 128
# The class of messages; the last byte of a frame.
_BASIC, _END = 60, 0xCE
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _EXPIRATION, _MESSAGE_ID = 0x8000, 0x2000, 0x1000, 0x0100, 0x0080


class LinkDown(MailboxDown):
    """The channel or its connection is closed."""


class NotFound(LinkDown):
    """The broker has no such queue or exchange; the channel is closed."""


class Locked(LinkDown):
    """Another connection holds this queue exclusively; the channel is closed."""


class AccessRefused(LinkDown):
    """The broker denies access, or another consumer has the queue; the channel is closed."""


class Differs(LinkDown):
    """The queue or exchange exists with other arguments; the channel is closed."""


class NoRoom(LinkDown):
    """The broker may hold no more queues than there are; the channel is closed."""


class Unroutable(MailboxDown):
    """No queue is bound to where the message was sent; it was not stored."""


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """A message as the broker handed it over."""

    tag: int
    redelivered: bool
    id: str
    headers: Mapping[str, object]
    body: bytes
    sent_with: bytes = field(default=b"", compare=False)

    @property
    def sent_to(self) -> tuple[str, str]:
        """The exchange and the routing key that it was published with; empty of one taken by ``get``."""
        if not self.sent_with:
            return "", ""
        cut = 1 + self.sent_with[0]
        exchange, route = self.sent_with[1:cut], self.sent_with[cut + 1 : cut + 1 + self.sent_with[cut]]
        return exchange.decode("utf-8", "replace"), route.decode("utf-8", "replace")


def delivery_of(message: DeliveredMessage) -> BrokerMessage:
    """Read what the library took from a queue."""
    properties = message.header.properties
    return BrokerMessage(
        message.delivery_tag or 0,
        bool(message.redelivered),
        str(properties.message_id or ""),
        properties.headers or {},
        message.body,
    )


@dataclass(frozen=True, slots=True)
class Sending:
    """A message as it is sent. Without ``transient`` it survives the broker's restart."""

    exchange: str
    route: str
    body: bytes
    id: str = ""
    headers: Mapping[str, str | int | bool] | None = None
    expiration: str | None = None
    transient: bool = False


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a declaration tells: letters that are ready, and consumers."""

    name: str
    ready: int
    consumers: int


def plain_words(error: BaseException, url: str) -> str:
    """Say what an error says, without the credentials of ``url``."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, TimeoutError) and not str(error):
        text = "the broker does not answer"
    elif isinstance(error, asyncio.CancelledError):
        # What the library gives those who wait on a connection that ended, and calls its cause.
        text = "the connection was lost"
    parts = urlsplit(url)
    secrets = {url, parts.netloc, parts.password or "", unquote(parts.password or "")}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def publish_frame(exchange: str, route: str, mandatory: bool, channel: int) -> bytes:
    """Encode the frame that opens a publish; the same for all messages of a route."""
    publish = commands.Basic.Publish(exchange=exchange, routing_key=route, mandatory=mandatory)
    return frame.marshal(publish, channel)


def content_frames(sending: Sending, channel: int, max_bytes: int) -> bytes:
    """Encode a message's properties, and its body in frames of ``max_bytes`` at most."""
    body = sending.body
    flags = _CONTENT_TYPE | _DELIVERY_MODE
    properties = [_JSON]
    if sending.headers:
        flags |= _HEADERS
        properties.append(_table(sending.headers))
    properties.append(_TRANSIENT if sending.transient else _PERSISTENT)
    if sending.expiration is not None:
        flags |= _EXPIRATION
        properties.append(encode.short_string(sending.expiration))
    if sending.id:
        flags |= _MESSAGE_ID
        properties.append(encode.short_string(sending.id))
    head = _CONTENT.pack(_BASIC, 0, len(body), flags) + b"".join(properties)
    if 0 < len(body) <= max_bytes:
        return _framed(2, channel, head) + _framed(3, channel, body)
    pieces = [body[at : at + max_bytes] for at in range(0, len(body), max_bytes)]
    return _framed(2, channel, head) + b"".join([_framed(3, channel, piece) for piece in pieces])


def _table(headers: Mapping[str, str | int | bool]) -> bytes:
    """Encode a table; one of plain texts, such as ours, takes the shortest way."""
    parts = []
    for name, value in sorted(headers.items()):
        named = name.encode()
        if type(value) is not str or len(named) > _NAME_MAX:
            return encode.field_table(dict(headers))
        text = value.encode()
        parts.append(bytes((len(named),)) + named + b"S" + _LENGTH.pack(len(text)) + text)
    table = b"".join(parts)
    return _LENGTH.pack(len(table)) + table


def ack_frame(tag: int, channel: int) -> bytes:
    """Encode the acknowledgement of one delivery."""
    return _ACK.pack(1, channel, 13, _BASIC, 80, tag, 0, _END)


def _framed(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


class Confirm:
    """Takes the broker's answer to one message, in the place of a future of the library's."""

    __slots__ = ("_id", "_open", "_raw", "_tag", "_told")

    def __init__(self, told: Told, raw: Channel, id_: str, among: set[Confirm]) -> None:
        self._told, self._raw, self._id, self._open = told, raw, id_, among
        self._tag = raw.delivery_tag

    def done(self) -> bool:
        """Say whether the answer is there."""
        return self not in self._open

    def cancelled(self) -> bool:
        """Say no: whoever gives up leaves it here."""
        return False

    def set_result(self, _: object) -> None:
        """Take the broker's yes."""
        self._end(None)

    def set_exception(self, error: BaseException) -> None:
        """Take its no, or the end of the channel."""
        self._end(_publish_error(error))

    def _end(self, error: MailboxDown | None) -> None:
        if self not in self._open:
            return
        self._open.discard(self)
        if self._raw.message_id_delivery_tag.get(self._id) == self._tag:
            del self._raw.message_id_delivery_tag[self._id]
        self._told(error)


def _publish_error(error: BaseException) -> MailboxDown:
    if isinstance(error, MailboxDown):
        return error
    if isinstance(error, aiormq.exceptions.PublishError):
        return Unroutable("no queue is bound there")
    refused = isinstance(error, aiormq.exceptions.DeliveryError)
    return MailboxDown("the broker refused the message") if refused else LinkDown("the channel was closed")
