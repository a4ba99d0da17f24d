"""Connections and channels to RabbitMQ by aiormq, and the errors and messages that pass over them.

Every wait ends: with an answer, or with ``LinkDown``. aiormq is the client below aio-pika, whose own layer
makes a second task of each delivery, and writes one publish at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import aiormq
import structlog
from aiormq import spec
from aiormq.abc import DeliveredMessage
from pamqp import frame

from gateway.errors import MailboxDown
from gateway.queue.rabbitmq.access import NO_FILES, TlsFiles, alert_of, refusal, refusal_of, vhost_refusal

# A declare that no quorum answers must not hold the supervisor for ever.
RPC_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
# What they would say is raised here, and said once by the mailbox.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)
_log = structlog.get_logger()


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


_NAMED: tuple[tuple[type[Exception], type[LinkDown]], ...] = (
    (aiormq.exceptions.ChannelNotFoundEntity, NotFound),
    (aiormq.exceptions.ChannelLockedResource, Locked),
    (aiormq.exceptions.ChannelAccessRefused, AccessRefused),
    (aiormq.exceptions.ChannelPreconditionFailed, Differs),
)
# What the library raises: its own errors, the system's, and its cancellations.
_THEIRS = (
    *(asyncio.CancelledError, aiormq.exceptions.AMQPError, OSError, RuntimeError, ValueError),
    StopAsyncIteration,
)


# Takes the messages of a queue, each up to its first wait before the next.
Sink = Callable[[DeliveredMessage], Awaitable[None]]
# Frames that may wait for the writer, and for the reader of a channel: those of one pass of the loop.
FRAMES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Sending:
    """A message as it is sent. Without ``transient`` it survives the broker's restart."""

    exchange: str
    route: str
    body: bytes
    id: str = ""
    headers: dict[str, Any] | None = None
    expires: bool = False
    transient: bool = False

    def properties(self) -> spec.Basic.Properties:
        """Return what is sent beside the body; what ``expires`` is kept by no queue."""
        return spec.Basic.Properties(
            message_id=self.id or None,
            headers=self.headers,
            content_type="application/json",
            delivery_mode=1 if self.transient else 2,
            expiration="0" if self.expires else None,
        )


def headers_of(message: DeliveredMessage) -> Mapping[str, Any]:
    """Return the headers of a message; empty where it has none."""
    return message.header.properties.headers or {}


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a declaration tells: letters that are ready, and consumers."""

    name: str
    ready: int
    consumers: int


class Dialer:
    """Opens connections to one broker.

    A connection on which a message came that the library cannot decode is lost, with all that was out on it.
    The next one of the same title takes such messages without their properties.
    """

    def __init__(self, url: str, name: str, heartbeat_s: int, tls: TlsFiles = NO_FILES) -> None:
        self._url, self._name, self._heartbeat_s, self._tls = url, name, heartbeat_s, tls
        self._last: dict[str, Link] = {}

    async def open(self, title: str) -> Link:
        """Connect and log in; ``title`` names the connection among those of this process."""
        last = self._last.get(title)
        strips = last is not None and last.unreadable
        if strips:
            _log.warning(
                "broker.unreadable_message", connection=title, hint="it is taken without its properties"
            )
        self._last[title] = link = await Link.open(
            self._url,
            title=f"{self._name} {title}",
            heartbeat_s=self._heartbeat_s,
            tls=self._tls,
            strips=strips,
        )
        return link


class _Connection(aiormq.Connection):
    FRAME_BUFFER_SIZE = FRAMES_MAX


class Link:
    """One open connection. ``ended`` is set when it is gone, ``unreadable`` if a message was the cause."""

    def __init__(self, connection: aiormq.Connection, url: str) -> None:
        self._connection, self._url = connection, url
        self._channels: set[AmqpChannel] = set()
        self.ended, self.unreadable = asyncio.Event(), False
        connection.closing.add_done_callback(self._on_closed)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        title: str,
        heartbeat_s: int,
        tls: TlsFiles = NO_FILES,
        timeout_s: float = 15,
        strips: bool = False,
    ) -> Link:
        """Connect and log in; one that ``strips`` takes what cannot be decoded without its properties.

        Raises:
            LinkDown: nobody answers, or the broker refuses; the text holds no credentials.
        """
        with _Renamed(url):
            context = await asyncio.to_thread(tls.context) if url.startswith("amqps:") else None
            parts = urlsplit(url)
            query = urlencode({**dict(parse_qsl(parts.query)), "heartbeat": heartbeat_s})
            connection = _Connection(
                parts._replace(query=query).geturl(),
                client_properties={"connection_name": title},
                transport_factory=_Transport(context, strips=strips),
            )
            try:
                async with asyncio.timeout(timeout_s):
                    await connection.connect()
                    await connection.ready()
            except aiormq.exceptions.InvalidFrameError as error:
                # A refusal in the middle of the handshake, whose words the library drops.
                if "Connection.Close" not in str(error):
                    raise
                refused = vhost_refusal(url)
                raise LinkDown(refused.text, hint=refused.hint) from None
            except (aiormq.exceptions.AMQPError, OSError) as error:
                if context and (alert := await alert_of(error, url, context)) is not None:
                    raise alert from error
                raise
        return cls(connection, url)

    @property
    def version(self) -> str:
        """The broker's version, empty where it does not say."""
        return str(self._connection.server_properties.get("version", ""))

    async def is_blocked(self) -> bool:
        """Say whether the broker takes nothing from this connection at the moment (memory or disk alarm)."""
        try:
            async with asyncio.timeout(0):
                await self._connection.ready()
        except TimeoutError:
            return not self.ended.is_set()
        return False

    async def unblocked(self) -> None:
        """Return when the broker takes messages from this connection again; for ever where it ended."""
        await self._connection.ready()

    async def channel(self, *, confirms: bool = False) -> AmqpChannel:
        """Open a channel."""
        with _Renamed(self._url):
            if self.ended.is_set():
                raise LinkDown("the connection is closed")
            # The library counts up, and one above what was agreed cuts the connection.
            number = next(number for number in count(1) if number not in self._connection.channels)
            async with asyncio.timeout(RPC_TIMEOUT_S):
                opened = await self._connection.channel(
                    number,
                    publisher_confirms=confirms,
                    on_return_raises=confirms,
                    frame_buffer_size=FRAMES_MAX,
                )
            assert isinstance(opened, aiormq.Channel)
            channel = AmqpChannel(self, opened, self._url)
            self._channels.add(channel)
            opened.closing.add_done_callback(lambda _: self._channels.discard(channel))
        return channel

    def has(self, channel: aiormq.Channel) -> bool:
        """Say whether the broker has not closed this channel."""
        return self._connection.channels.get(channel.number) is channel

    async def close(self) -> None:
        """Close the connection; nothing is raised."""
        self.abandon()
        with contextlib.suppress(LinkDown, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                with _Renamed(self._url):
                    await self._connection.close(aiormq.ConnectionClosed(0, "closed"))

    def abandon(self) -> None:
        """Count the connection as lost; who keeps it up closes it and opens another one."""
        self.ended.set()
        for channel in self._channels:
            channel.ended.set()

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        # Whatever else ends a connection has a name of the library's or of the system's.
        known = (aiormq.exceptions.AMQPError, OSError, asyncio.CancelledError)
        frame_error = isinstance(error, aiormq.exceptions.InvalidFrameError)
        self.unreadable = frame_error or (error is not None and not isinstance(error, known))
        self.abandon()


class AmqpChannel:
    """One open channel. ``ended`` is set when it is gone, ``cause`` says why, ``kind`` as which error."""

    def __init__(self, link: Link, channel: aiormq.Channel, url: str) -> None:
        self._link, self._channel, self._url = link, channel, url
        self.ended = asyncio.Event()
        self.cause, self.kind = "", LinkDown
        channel.closing.add_done_callback(self._on_closed)
        channel.on_consumer_cancel_callbacks.add(self._on_cancelled)

    async def declare_queue(
        self,
        name: str,
        *,
        passive: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueState:
        """Declare a durable queue, or an exclusive one that ends with the connection.

        Raises:
            NotFound, Locked, Differs: and the channel is closed.
        """
        with self._rpc(name):
            told = await self._channel.queue_declare(
                name,
                passive=passive,
                durable=not exclusive,
                exclusive=exclusive,
                arguments=dict(arguments or {}),
                timeout=RPC_TIMEOUT_S,
            )
        return QueueState(told.queue or name, told.message_count or 0, told.consumer_count or 0)

    async def declare_exchange(self, name: str, kind: str, *, passive: bool = False) -> None:
        """Declare a durable exchange; ``passive`` only looks whether it is there (NotFound)."""
        with self._rpc():
            await self._channel.exchange_declare(
                name, exchange_type=kind, passive=passive, durable=True, timeout=RPC_TIMEOUT_S
            )

    async def bind(self, queue: str, exchange: str, routes: list[str]) -> None:
        """Bind a queue to all ``routes``; only the last one is waited for."""
        with self._rpc():
            for route in routes[:-1]:
                await self._channel.queue_bind(queue, exchange, route, nowait=True)
            await self._channel.queue_bind(queue, exchange, routes[-1], timeout=RPC_TIMEOUT_S)

    async def unbind(self, queue: str, exchange: str, route: str) -> None:
        """Take one binding back."""
        with self._rpc():
            await self._channel.queue_unbind(queue, exchange, route, timeout=RPC_TIMEOUT_S)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue; a missing one is no error."""
        with self._rpc():
            await self._channel.queue_delete(name, timeout=RPC_TIMEOUT_S)

    async def get(self, queue: str) -> DeliveredMessage | None:
        """Take one message, which returns to its place when the channel is closed; None: no message."""
        with self._rpc():
            message = await self._channel.basic_get(queue, timeout=RPC_TIMEOUT_S)
        return None if isinstance(message.delivery, spec.Basic.GetEmpty) else message

    async def limit(self, letters: int) -> None:
        """Let so many letters of each queue be out."""
        with self._rpc():
            await self._channel.basic_qos(prefetch_count=letters, timeout=RPC_TIMEOUT_S)

    async def consume(self, queue: str, sink: Sink, *, exclusive: bool = False, no_ack: bool = False) -> None:
        """Have ``sink`` called with each message, in order.

        Raises:
            AccessRefused: ``exclusive``, and another one consumes.
        """

        async def take(message: DeliveredMessage) -> None:
            try:
                await sink(message)
            except LinkDown:
                pass
            except Exception:  # noqa: BLE001 - logged below
                # One message ends here: it comes again with the next opening of its queue.
                _log.exception("delivery.broken", queue=queue, id=message.header.properties.message_id)

        with self._rpc(queue):
            await self._channel.basic_consume(
                queue, take, exclusive=exclusive, no_ack=no_ack, timeout=RPC_TIMEOUT_S
            )

    async def ack(self, message: DeliveredMessage) -> None:
        """Acknowledge one of its messages.

        Raises:
            LinkDown: the channel is closed: the message comes again.
        """
        with self._rpc():
            # Written with what else this pass of the loop writes: to wait for that would tell nothing more.
            await self._channel.basic_ack(message.delivery_tag or 0, wait=False)

    async def publish(self, sending: Sending, *, mandatory: bool = True, wait: bool = False) -> None:
        """Send; on a channel with confirms return when the broker has stored it.

        Where it is to ``wait``, the next one is sent when this one is written: one each pass of the loop.

        Raises:
            LinkDown: the channel is closed; the outcome is unknown.
            Unroutable: no queue is bound there.
            MailboxDown: the broker refused it.
            ValueError: it cannot be written.
        """
        with self._rpc():
            try:
                await self._channel.basic_publish(
                    sending.body,
                    exchange=sending.exchange,
                    routing_key=sending.route,
                    properties=sending.properties(),
                    mandatory=mandatory,
                    wait=wait,
                )
            except aiormq.exceptions.PublishError:
                raise Unroutable("no queue is bound there") from None
            except aiormq.exceptions.DeliveryError:
                raise MailboxDown("the broker refused the message") from None

    async def close(self, cause: str = "closed") -> None:
        """Close the channel: what is not acknowledged returns to its queue, in order. Never raises."""
        self.cause = self.cause or cause
        self.ended.set()
        with contextlib.suppress(LinkDown):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    with _Renamed(self._url):
                        await self._channel.close(aiormq.ChannelClosed(0, cause))
            except TimeoutError:
                # A broker that does not read frees the letters at the connection's end alone.
                await self._link.close()

    @property
    def is_closed(self) -> bool:
        """Whether the broker closed it or it is closed here, which ``ended`` follows some passes later."""
        return self._channel.is_closed or not self._link.has(self._channel)

    def _rpc(self, about: str = "") -> _Renamed:
        return _Renamed(self._url, about, self)

    def _on_cancelled(self, _: object) -> None:
        # The queue is gone: the channel without its consumer is of no use.
        self.cause = "the broker cancelled the consumer"
        self.ended.set()

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if not self.cause:
            self.cause = plain_words(error, self._url) if error is not None else "closed"
            self.kind = _kind_of(error)
        self.ended.set()


class _Transport(aiormq.TransportFactory):
    """Opens a socket whose writes are joined; one that ``strips`` reads what cannot be decoded without it."""

    def __init__(self, context: ssl.SSLContext | None, *, strips: bool) -> None:
        self._context, self._strips = context, strips

    async def create(self, url: Any, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            opened = await loop.create_connection(lambda: protocol, url.host, url.port, ssl=self._context)
        except OSError as error:
            raise aiormq.AMQPConnectionError(*error.args) from error
        writer = _JoiningWriter(opened[0], protocol, reader, loop)
        return _StrippingReader(reader) if self._strips else reader, writer


class _JoiningWriter(asyncio.StreamWriter):
    """Writes to the socket once a pass of the loop; the library writes each frame by itself."""

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.StreamReaderProtocol,
        reader: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(transport, protocol, reader, loop)
        self._call_soon = loop.call_soon
        self._parts: list[bytes] = []

    def write(self, data: Any) -> None:
        if not self._parts:
            self._call_soon(self._flush)
        self._parts.append(data)

    def write_eof(self) -> None:
        self._flush()
        super().write_eof()

    def close(self) -> None:
        self._flush()
        super().close()

    def _flush(self) -> None:
        if self._parts and not self.is_closing():
            super().write(b"".join(self._parts))
        self._parts.clear()


class _StrippingReader(asyncio.StreamReader):
    """Reads whole frames from another reader, and replaces the content headers that cannot be decoded."""

    _HEAD, _PLAIN = struct.Struct(">BHI"), struct.Struct(">BHIHHQHB")
    _CONTENT_HEADER, _END = 2, 0xCE

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._frames, self._read = reader, b""

    def at_eof(self) -> bool:
        return not self._read and self._frames.at_eof()

    async def readexactly(self, n: int) -> bytes:
        while len(self._read) < n:
            self._read += await self._frame()
        part, self._read = self._read[:n], self._read[n:]
        return part

    async def _frame(self) -> bytes:
        head = await self._frames.readexactly(self._HEAD.size)
        kind, channel, size = self._HEAD.unpack(head)
        whole = head + await self._frames.readexactly(size + 1)
        if kind != self._CONTENT_HEADER:
            return whole
        try:
            frame.unmarshal(whole)
        except Exception:  # noqa: BLE001 - whatever the library meets there ends the connection
            # Class, weight, size of the body and no flag: of a header that is all but its properties.
            of_class, weight, body_size = struct.unpack_from(">HHQ", whole, self._HEAD.size)
            plain = (of_class, weight, body_size, 0, self._END)
            return self._PLAIN.pack(kind, channel, self._PLAIN.size - self._HEAD.size - 1, *plain)
        return whole


def plain_words(error: BaseException, url: str) -> str:
    """Say what an error says, without the credentials of ``url``."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, TimeoutError) and not str(error):
        text = "the broker does not answer"
    elif isinstance(error, asyncio.CancelledError):
        # What the library gives those who wait on a connection that ended, and calls its cause.
        text = "the connection was lost"
    elif isinstance(error, StopAsyncIteration):
        # Its own word for a server that hung up before its first byte.
        text = "the server hung up"
    parts = urlsplit(url)
    secrets = {url, parts.netloc, parts.password or "", unquote(parts.password or "")}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _kind_of(error: BaseException | None) -> type[LinkDown]:
    return next((ours for theirs, ours in _NAMED if isinstance(error, theirs)), LinkDown)


class _Renamed:
    """Turns the library's errors into ours, and never loses a cancellation; refuses a channel that has ended.

    The library cancels what waits on a closed channel, and may answer a true cancellation with an error
    of its own where both happen at once: the task's own count tells them apart.
    """

    __slots__ = ("_about", "_before", "_channel", "_task", "_url")

    def __init__(self, url: str, about: str = "", channel: AmqpChannel | None = None) -> None:
        self._url, self._about, self._channel = url, about, channel

    def __enter__(self) -> None:
        # A frame on a channel whose end the library has confirmed would end the connection.
        if self._channel is not None and (self._channel.ended.is_set() or self._channel.is_closed):
            raise LinkDown("the channel is closed")
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not isinstance(error, _THEIRS):
            return
        if self._task is not None and self._task.cancelling() > self._before:
            if isinstance(error, asyncio.CancelledError):
                return
            raise asyncio.CancelledError from None
        if error is None:
            return
        if isinstance(error, ValueError) and self._channel is not None and not self._channel.is_closed:
            # Not the channel's end, but something that cannot be written.
            return
        kind, text = _kind_of(error), plain_words(error, self._url)
        if (refused := refusal_of(error) or refusal(str(error), self._url)) is not None:
            raise (NoRoom if refused.full else kind)(refused.text, hint=refused.hint) from None
        raise kind(f"{self._about}: {text}" if self._about else text) from None
