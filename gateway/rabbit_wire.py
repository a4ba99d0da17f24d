"""What passes between mailbox and AMQP client: messages and their frames, answers, errors without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pamqp import body as amqp_body
from pamqp import commands, frame, header

from gateway.errors import MailboxDown

_TRANSIENT, _PERSISTENT = 1, 2


class LinkDown(MailboxDown):
    """The channel or its connection is closed."""


class NotFound(LinkDown):
    """The broker has no such queue or exchange; the channel is closed."""


class Locked(LinkDown):
    """Another connection holds this queue exclusively; the channel is closed."""


class Refused(LinkDown):
    """The broker denies access, or another consumer has the queue; the channel is closed."""


class Differs(LinkDown):
    """The queue or exchange exists with other arguments; the channel is closed."""


class Unroutable(MailboxDown):
    """No queue is bound to where the message was sent; it was not stored."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as the broker handed it over."""

    tag: int
    redelivered: bool
    id: str
    headers: Mapping[str, object]
    body: bytes


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
    properties = commands.Basic.Properties(
        content_type="application/json",
        headers=dict(sending.headers) if sending.headers else None,
        delivery_mode=_TRANSIENT if sending.transient else _PERSISTENT,
        expiration=sending.expiration,
        message_id=sending.id or None,
    )
    head = frame.marshal(header.ContentHeader(body_size=len(body), properties=properties), channel)
    pieces = [body[at : at + max_bytes] for at in range(0, len(body), max_bytes)]
    return head + b"".join(frame.marshal(amqp_body.ContentBody(piece), channel) for piece in pieces)
