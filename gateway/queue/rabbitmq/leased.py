"""The library's connection, which gives its lease up in time and reads by ``Frames``."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import aiormq
from aio_pika.abc import UnderlayConnection
from aiormq.connection import FrameReceiver
from pamqp import commands

from gateway.queue.rabbitmq.frames import Frames


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


class LeasedConnection(aio_pika.Connection):
    """A connection by ``Connection``."""

    async def connect(self, timeout: float | None = None) -> None:
        """As the library's, within seconds."""
        self.transport = await _Underlay.connect(
            self.url, self._on_connection_close, timeout=timeout, **self.kwargs
        )
        await self._on_connected()
