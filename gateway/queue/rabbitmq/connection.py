"""Connections and channels to RabbitMQ, by the AMQP client library.

Every wait ends: with an answer, or with ``LinkDown``. Publishing and acknowledging never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aio_pika
import aiormq
import structlog
from aiormq.abc import ChannelFrame, DeliveredMessage
from pamqp import commands, frame

from gateway.errors import MailboxDown
from gateway.queue.rabbitmq import lenient
from gateway.queue.rabbitmq.leased import Channel, LeasedConnection
from gateway.queue.rabbitmq.refusals import refusal
from gateway.queue.rabbitmq.tls import NO_FILES, TlsFiles, alert_of, refusal_of
from gateway.queue.rabbitmq.wire import (
    AccessRefused,
    BrokerMessage,
    Confirm,
    Differs,
    LinkDown,
    Locked,
    NoRoom,
    NotFound,
    QueueState,
    Sending,
    Told,
    ack_frame,
    content_frames,
    delivery_of,
    plain_words,
    publish_frame,
)

# A declare that no quorum answers must not hold the supervisor for ever.
RPC_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0
CHANNELS_MAX = 2047
_HUNG_UP = "the server hung up"
# What they would say is raised here, and said once by the mailbox.
for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
lenient.install()
_log = structlog.get_logger()

_NAMED: tuple[tuple[type[Exception], type[LinkDown]], ...] = (
    (aiormq.exceptions.ChannelNotFoundEntity, NotFound),
    (aiormq.exceptions.ChannelLockedResource, Locked),
    (aiormq.exceptions.ChannelAccessRefused, AccessRefused),
    (aiormq.exceptions.ChannelPreconditionFailed, Differs),
)


class Link:
    """One open connection. ``ended`` is set when it is gone."""

    def __init__(self, connection: LeasedConnection, url: str) -> None:
        transport = connection.transport
        assert transport is not None
        self._pika, self._url, self._raw = connection, url, transport.connection
        self.ended = asyncio.Event()
        self._raw.closing.add_done_callback(lambda _: self.ended.set())
        self._parts: list[bytes] = []
        self._flushing = False

    @classmethod
    async def open(
        cls, url: str, *, title: str, heartbeat_s: int, tls: TlsFiles = NO_FILES, timeout_s: float = 15
    ) -> Link:
        """Connect and log in.

        Raises:
            LinkDown: nobody answers, or the broker refuses; the text holds no credentials.
        """
        with _renamed(url):
            context = await asyncio.to_thread(tls.context) if url.startswith("amqps:") else None
            try:
                connection = await aio_pika.connect(
                    url,
                    timeout=timeout_s,
                    connection_class=LeasedConnection,
                    client_properties={"connection_name": title},
                    heartbeat=heartbeat_s,
                    ssl_context=context,
                )
            except (aiormq.exceptions.AMQPError, OSError) as error:
                if context and (alert := await alert_of(error, url, context)) is not None:
                    raise alert from error
                raise
        return cls(connection, url)

    @property
    def version(self) -> str:
        """The broker's version, empty where it does not say."""
        return str(getattr(self._raw, "server_properties", {}).get("version", ""))

    @property
    def blocked(self) -> bool:
        """Whether the broker takes nothing from this connection at the moment (memory or disk alarm)."""
        ready = self._raw.ready()
        try:
            ready.send(None)
        except StopIteration:
            return False
        ready.close()
        return True

    async def unblocked(self) -> None:
        """Return when the broker takes messages from this connection again; for ever where it ended."""
        await self._raw.ready()

    async def channel(self, *, confirms: bool = False) -> AmqpChannel:
        """Open a channel."""
        with _renamed(self._url):
            if self.ended.is_set():
                raise LinkDown("the connection is closed")
            number = self._free_number()
            raw = Channel(self._raw, number, publisher_confirms=confirms)
            self._raw.channels[number] = raw
            await raw.open(timeout=RPC_TIMEOUT_S)
        return AmqpChannel(self, raw, self._url)

    def _free_number(self) -> int:
        """Return the smallest number that no channel has: one above what was agreed cuts the connection."""
        most = getattr(getattr(self._raw, "connection_tune", None), "channel_max", 0) or CHANNELS_MAX
        for number in range(1, most + 1):
            if number not in self._raw.channels:
                return number
        raise LinkDown(f"all {most} channels of the connection are open")

    async def close(self) -> None:
        """Close the connection; nothing is raised."""
        self.flush()
        with contextlib.suppress(LinkDown, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                with _renamed(self._url):
                    await self._pika.close()
        self.ended.set()

    def abandon(self) -> None:
        """Count the connection as lost; who keeps it up closes it and opens another one."""
        self.ended.set()

    def write(self, part: bytes) -> None:
        """Queue bytes for the socket; they leave at the end of this pass of the loop."""
        self._parts.append(part)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Hand what is queued to the writer now."""
        self._flushing = False
        if self._parts and not self.ended.is_set():
            self._raw.write_queue.put_nowait(ChannelFrame(payload=b"".join(self._parts), should_close=False))
        self._parts.clear()


class AmqpChannel:
    """One open channel. ``ended`` is set when it is gone, ``cause`` says why, ``kind`` as which error."""

    def __init__(self, link: Link, raw: Channel, url: str) -> None:
        self._link, self._raw, self._url = link, raw, url
        self.ended = asyncio.Event()
        self.cause, self.kind = "", LinkDown
        self._confirms: set[Confirm] = set()
        self._routes: dict[tuple[str, str, bool], bytes] = {}
        raw.flush = link.flush
        raw.closing.add_done_callback(self._on_closed)

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
            answer = await self._raw.queue_declare(
                name,
                passive=passive,
                durable=not exclusive,
                exclusive=exclusive,
                arguments=dict(arguments or {}),
                timeout=RPC_TIMEOUT_S,
            )
        return QueueState(answer.queue or name, answer.message_count or 0, answer.consumer_count or 0)

    async def declare_exchange(self, name: str, kind: str, *, passive: bool = False) -> None:
        """Declare a durable exchange; ``passive`` only looks whether it is there (NotFound)."""
        with self._rpc():
            await self._raw.exchange_declare(
                name, exchange_type=kind, passive=passive, durable=True, timeout=RPC_TIMEOUT_S
            )

    async def bind(self, queue: str, exchange: str, routes: list[str]) -> None:
        """Bind a queue to all ``routes``; only the last one is waited for."""
        with self._rpc():
            for route in routes[:-1]:
                bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=route, nowait=True)
                self._link.write(frame.marshal(bind, self._raw.number))
            self._link.flush()
            await self._raw.queue_bind(queue, exchange, routes[-1], timeout=RPC_TIMEOUT_S)

    async def unbind(self, queue: str, exchange: str, route: str) -> None:
        """Take one binding back."""
        with self._rpc():
            await self._raw.queue_unbind(queue, exchange, route, timeout=RPC_TIMEOUT_S)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue; a missing one is no error."""
        with self._rpc():
            await self._raw.queue_delete(name, timeout=RPC_TIMEOUT_S)

    async def get(self, queue: str) -> BrokerMessage | None:
        """Take one message, which returns to its place when the channel is closed; None: no message."""
        with self._rpc():
            message = await self._raw.basic_get(queue, timeout=RPC_TIMEOUT_S)
        return None if message.delivery_tag is None else delivery_of(message)

    async def limit(self, letters: int, *, live: bool) -> None:
        """Let so many letters be out; ``live`` counts the channel's and holds at once, on classic queues."""
        with self._rpc():
            await self._raw.basic_qos(prefetch_count=letters, global_=live, timeout=RPC_TIMEOUT_S)

    async def consume(
        self,
        queue: str,
        sink: Callable[[BrokerMessage], None],
        *,
        exclusive: bool = False,
        no_ack: bool = False,
    ) -> None:
        """Have ``sink`` called with each message, in order; it must be quick and never raise.

        Raises:
            Refused: ``exclusive``, and another one consumes.
        """
        self._raw.sink = sink
        self._raw.on_consumer_cancel_callbacks.add(self._on_cancelled)
        with self._rpc(queue):
            await self._raw.basic_consume(
                queue, _never, exclusive=exclusive, no_ack=no_ack, timeout=RPC_TIMEOUT_S
            )

    def ack(self, tag: int) -> None:
        """Acknowledge one delivery.

        Raises:
            LinkDown: the channel is closed: the message comes again.
        """
        if self.ended.is_set() or self._raw.ending:
            raise LinkDown("the channel is closed")
        self._link.write(ack_frame(tag, self._raw.number))

    def publish(self, sending: Sending, *, mandatory: bool = True) -> asyncio.Future[None]:
        """Send; the future ends when the broker has stored it (channels with confirms).

        Raises (from the future, too):
            LinkDown: the channel is closed; the outcome is unknown.
            Unroutable: no queue is bound there.
            MailboxDown: the broker refused it.
        """
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: MailboxDown | None) -> None:
            if not confirm.done():
                confirm.set_result(None) if error is None else confirm.set_exception(error)

        self.send(sending, told, mandatory=mandatory)
        if not self._raw.publisher_confirms:
            confirm.set_result(None)
        return confirm

    def send(self, sending: Sending, told: Told, *, mandatory: bool = True) -> None:
        """Send; ``told`` is called with None once the broker has stored it, or with the error of ``publish``.

        Raises:
            LinkDown: the channel is closed; ``told`` is not called.
        """
        raw = self._raw
        if self.ended.is_set() or raw.ending or raw.is_closed:
            raise LinkDown("the channel is closed")
        route = (sending.exchange, sending.route, mandatory)
        if (opening := self._routes.get(route)) is None:
            opening = self._routes[route] = publish_frame(*route, raw.number)
        frames = opening + content_frames(sending, raw.number, raw.max_content_size)
        # The broker counts what is sent: what cannot be encoded is not counted here, either.
        if raw.publisher_confirms:
            self._await_confirm(told, sending.id)
        self._link.write(frames)

    async def close(self) -> None:
        """Close the channel: what is not acknowledged returns to its queue, in order. Never raises."""
        self._link.flush()
        self._on_closed(None)
        if self._raw.is_closed:
            return
        with contextlib.suppress(LinkDown):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    with _renamed(self._url):
                        await self._raw.close()
            except TimeoutError:
                # A broker that does not read frees the letters at the connection's end alone.
                await self._link.close()

    def _await_confirm(self, told: Told, id_: str) -> None:
        raw = self._raw
        raw.delivery_tag += 1
        answer = Confirm(told, raw, id_, self._confirms)
        raw.confirmations[raw.delivery_tag] = answer  # type: ignore[assignment]
        raw.message_id_delivery_tag[id_] = raw.delivery_tag
        self._confirms.add(answer)

    @contextlib.contextmanager
    def _rpc(self, about: str = "") -> Iterator[None]:
        if self.ended.is_set():
            raise LinkDown("the channel is closed")
        self._link.flush()
        with _renamed(self._url, about):
            yield

    def _on_cancelled(self, _: object) -> None:
        # The queue is gone: the channel without its consumer is of no use.
        self.cause = "the broker cancelled the consumer"
        self.ended.set()

    def _on_closed(self, closing: asyncio.Future[Any] | None) -> None:
        error = closing.exception() if closing is not None and not closing.cancelled() else None
        if closing is not None and not self.cause:
            self.cause = plain_words(error, self._url) if error is not None else "closed"
            self.kind = _kind_of(error)
        self.ended.set()
        for answer in list(self._confirms):
            answer.set_exception(self.kind(self.cause or "the channel was closed"))


def _kind_of(error: BaseException | None) -> type[LinkDown]:
    return next((ours for theirs, ours in _NAMED if isinstance(error, theirs)), LinkDown)


@contextlib.contextmanager
def _renamed(url: str, about: str = "") -> Iterator[None]:
    """Turn the library's errors into ours, and never lose a cancellation.

    The library cancels what waits on a closed channel, and may answer a true cancellation with an error
    of its own where both happen at once: the task's own count tells them apart.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0

    def cancelled() -> bool:
        return task is not None and task.cancelling() > before

    try:
        yield
    except asyncio.CancelledError:
        if cancelled():
            raise
        raise LinkDown("the connection was closed") from None
    except MailboxDown:
        raise
    except StopAsyncIteration:
        # The library's own word for a server that hung up before its first byte.
        raise LinkDown(f"{about}: {_HUNG_UP}" if about else _HUNG_UP) from None
    except (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        if cancelled():
            raise asyncio.CancelledError from None
        kind = _kind_of(error)
        if (refused := refusal_of(error) or refusal(str(error), url)) is not None:
            raise (NoRoom if refused.full else kind)(refused.text, hint=refused.hint) from None
        raise kind(f"{about}: {plain_words(error, url)}" if about else plain_words(error, url)) from None
    if cancelled():
        raise asyncio.CancelledError


async def _never(_: DeliveredMessage) -> None:
    """Stand where the library wants a consumer; deliveries go to the sink."""
