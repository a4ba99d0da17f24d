"""The library's connection, which gives its lease up in time and reads by ``Frames``, and its channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aio_pika
import aiormq
import structlog
from aio_pika.abc import UnderlayConnection
from aiormq.channel import Channel as RawChannel
from aiormq.connection import FrameReceiver
from pamqp import commands

from gateway.queue.rabbitmq.frames import Frames, Whole
from gateway.queue.rabbitmq.wire import BrokerMessage

_log = structlog.get_logger()
_Answer = commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject


class Connection(aiormq.Connection):
    """The library's own, but for its lease and its reader."""

    # No turn may run here whose letter another daemon was already handed. The broker gives a silent client up
    # two heartbeats after its last frame at the earliest, and that may be half of one old when the silence
    # begins. The library looks at every half: GRACE and a half must be less than one and a half. It is hardly
    # less, since a busy broker, which sends a frame at every half, may be late with it.
    # Heartbeats without a frame of the broker.
    GRACE = 0.9
    # The write queue has no bound: the puts in flight are bounded by their callers.
    FRAME_BUFFER_SIZE = 0

    def __init__(self, url: Any, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        # The library's own private figure counts one second more, too much where the heartbeat is short.
        self.__heartbeat_grace_timeout = self.GRACE * self.heartbeat_timeout  # type: ignore[assignment]

    @staticmethod
    async def _rpc(
        request: Any, writer: asyncio.StreamWriter, frame_receiver: Any, wait_response: bool = True
    ) -> Any:
        """As the library's; where the broker closes instead of answering, its words are the error."""
        heard: Any = _Heard(frame_receiver)
        try:
            return await aiormq.Connection._rpc(request, writer, heard, wait_response)
        except aiormq.exceptions.InvalidFrameError:
            # A wrong virtual host is refused in the middle of the handshake, where the library drops why.
            if isinstance(heard.frame, commands.Connection.Close):
                close = heard.frame
                raise aiormq.exceptions.ConnectionClosed(close.reply_code, close.reply_text) from None
            raise

    async def __reader(self, receiver: FrameReceiver) -> None:
        # A private method of the library's class of this name. Where that goes, no delivery is understood.
        await super().__reader(Frames(receiver.reader))


class _Heard:
    """Keeps the last frame that was received."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver
        self.frame: Any = None

    async def get_frame(self) -> Any:
        """Receive one."""
        received = await self._receiver.get_frame()
        self.frame = received[2]
        return received


class _Underlay(UnderlayConnection):
    @classmethod
    async def make_connection(
        cls, url: Any, timeout: float | None = None, **kwargs: Any
    ) -> aiormq.abc.AbstractConnection:
        connection = Connection(url, **kwargs)
        async with asyncio.timeout(timeout):
            await connection.connect()
            await connection.ready()
        return connection


class Channel(RawChannel):
    """The library's channel without a task per delivery, and without its queue where nothing waits there."""

    def __init__(self, connection: Any, number: int, *, publisher_confirms: bool) -> None:
        super().__init__(connection, number, frame_buffer=0, publisher_confirms=publisher_confirms)
        self.frames = _Passing(self)
        self.sink: Callable[[BrokerMessage], None] | None = None
        # The broker has closed it. What it was sent before our answer it passes over; a frame behind the
        # answer would end the connection.
        self.ending = False
        self.flush: Callable[[], None] = lambda: None

    async def _on_close_frame(self, frame: commands.Channel.Close) -> None:
        self.ending = True
        self.flush()
        await super()._on_close_frame(frame)

    async def _on_deliver_frame(self, frame: commands.Basic.Deliver) -> None:
        self.deliver(frame)

    def deliver(self, frame: commands.Basic.Deliver) -> None:
        """Hand a delivery to the sink."""
        if not isinstance(frame, Whole):
            raise TypeError("a delivery without its content")
        if self.sink is None:
            return
        try:
            self.sink(frame.delivery)
        except Exception:  # noqa: BLE001 - logged below
            # One message ends here: the library would close the connection of all others.
            _log.exception("delivery.broken", id=frame.delivery.id)

    async def _on_confirm_frame(self, frame: _Answer) -> None:
        self.answered(frame)

    def answered(self, frame: _Answer) -> None:
        """Take the broker's answer to a message, or to all up to it, at once and not in a callback each."""
        last, several = frame.delivery_tag or 0, getattr(frame, "multiple", False)
        # One that came back stands last with the tag that it had.
        tags = [tag for tag in self.confirmations if tag <= last] if several else [last]
        for tag in tags:
            self._confirm_delivery(tag, frame)


class _Passing(asyncio.Queue[tuple[int, Any]]):
    """The queue of a channel's frames. What its task would only hand on goes past it where it is empty.

    The order stays: a message that came back must be known as such before its confirmation is.
    """

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    async def put(self, item: tuple[int, Any]) -> None:
        """Hand a delivery or a confirmation on, or let it wait behind what came before."""
        said = item[1]
        if isinstance(said, Whole) and self.empty():
            self._channel.deliver(said)
        elif isinstance(said, _Answer) and self.empty() and self._channel.publisher_confirms:
            self._channel.answered(said)
        else:
            self.put_nowait(item)


class LeasedConnection(aio_pika.Connection):
    """A connection by ``Connection``."""

    async def connect(self, timeout: float | None = None) -> None:
        """As the library's, within seconds."""
        self.transport = await _Underlay.connect(
            self.url, self._on_connection_close, timeout=timeout, **self.kwargs
        )
        await self._on_connected()
