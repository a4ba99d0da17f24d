"""What passes between the mailbox and its AMQP client: messages, answers, and errors without credentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from gateway.errors import MailboxDown


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
