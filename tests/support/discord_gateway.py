"""The gateway of the local Discord: sessions, RESUME with replay, intents, compression, and its faults.

The faults are attributes, to be set at any time::

    gateway.refuse = "reset"      # cuts who connects; a number answers with that HTTP status; "" ends it
    gateway.mute = True           # sockets stay open, but no event and no heartbeat ack passes
    gateway.resume_drops = 2      # a RESUME replays without every second missed event (1: without any)
    gateway.close_next = 4014     # closes the next IDENTIFY or RESUME
    gateway.drop()                # cut every socket without a close frame
    gateway.reconnect()           # op 7
    gateway.invalidate()          # op 9, not resumable; ``resumable=True`` for the other kind
    gateway.close(4000)           # close every socket with this code
    gateway.forget()              # sessions end: the next RESUME gets op 9
"""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

GUILDS = 1 << 0
GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
# After so many intervals without one the gateway closes with 4009.
HEARTBEATS_WITHIN = 2

Build = Callable[[int], dict[str, Any] | None]


class Coding:
    """How one connection's frames are compressed: as the client asks for, zlib-stream or zstd-stream."""

    def __init__(self, name: str) -> None:
        if name == "zlib-stream":
            self._stream: Any = zlib.compressobj()
            self._flush = zlib.Z_SYNC_FLUSH
        else:
            # From Python 3.14 on.
            self._stream = import_module("compression.zstd").ZstdCompressor()
            self._flush = self._stream.FLUSH_BLOCK

    def frames(self, data: bytes) -> list[bytes]:
        """The frames of one payload; a big one comes in two, as the platform may send it."""
        packed = self._stream.compress(data) + self._stream.flush(self._flush)
        return (
            [packed[:4096], packed[4096:]]
            if len(packed) > 4100 and self._flush == zlib.Z_SYNC_FLUSH
            else [packed]
        )


@dataclass(eq=False)
class Session:
    intents: int
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    seq: int = 0
    events: list[tuple[int, bytes]] = field(default_factory=list)
    connection: Connection | None = None
    lost_at: float = 0.0


@dataclass(eq=False)
class Connection:
    """One socket, as the test sees it afterwards."""

    path: str
    coding: Coding
    socket: web.WebSocketResponse
    request: web.Request
    # Either "identify" or "resume".
    began: str = ""
    close_code: int | None = None
    closing: int = 0
    out: asyncio.Queue[bytes | int] = field(default_factory=asyncio.Queue)
    session: Session | None = None

    @property
    def open(self) -> bool:
        return self.close_code is None

    def send(self, op: int, data: Any = None, **more: Any) -> None:
        self.out.put_nowait(orjson.dumps({"op": op, "d": data, "s": None, "t": None} | more))

    async def write(self) -> None:
        """Send what waits, until a close code comes along."""
        while True:
            item = await self.out.get()
            if isinstance(item, int):
                self.closing = item
                await self.socket.close(code=item)
                return
            for frame in self.coding.frames(item):
                await self.socket.send_bytes(frame)


class Gateway:
    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self.heartbeat_ms = 41_250
        self.resume_window_s = 180.0
        self.refuse: str | int = ""
        self.mute = False
        self.resume_drops = 0
        self.close_next = 0
        self.identifies_left = 1000
        self.sessions: dict[str, Session] = {}
        self.connections: list[Connection] = []

    # -- what a test does ---------------------------------------------------------------------------

    @property
    def live(self) -> list[Connection]:
        return [one for one in self.connections if one.open and one.session is not None]

    def drop(self) -> None:
        for connection in self.connections:
            if connection.open and connection.request.transport is not None:
                connection.request.transport.abort()

    def close(self, code: int) -> None:
        for connection in self.connections:
            if connection.open:
                connection.out.put_nowait(code)

    def reconnect(self) -> None:
        for connection in self.live:
            connection.send(7)

    def invalidate(self, *, resumable: bool = False) -> None:
        for connection in self.live:
            connection.send(9, resumable)
        if not resumable:
            self.forget()

    def forget(self) -> None:
        self.sessions.clear()

    # -- what the server does -----------------------------------------------------------------------

    def dispatch(self, event: str, intent: int, build: dict[str, Any] | Build) -> None:
        """Give an event to every session that asked for its kind; ``build`` makes it for given intents."""
        for session in self._remembered():
            if session.intents & intent or not intent:
                data = build(session.intents) if callable(build) else build
                if data is not None:
                    self._event(session, event, data)

    def _remembered(self) -> list[Session]:
        old = time.monotonic() - self.resume_window_s
        for session in list(self.sessions.values()):
            if session.connection is None and session.lost_at < old:
                del self.sessions[session.id]
        return list(self.sessions.values())

    def _event(self, session: Session, event: str, data: Any) -> None:
        session.seq += 1
        body = orjson.dumps({"op": 0, "t": event, "s": session.seq, "d": data})
        session.events.append((session.seq, body))
        if session.connection is not None and session.connection.open and not self.mute:
            session.connection.out.put_nowait(body)

    async def connect(self, request: web.Request) -> web.StreamResponse:
        if self.refuse == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if self.refuse:
            return web.Response(status=int(self.refuse), text="upstream connect error")
        socket = web.WebSocketResponse(max_msg_size=0, compress=False, timeout=2.0)
        await socket.prepare(request)
        coding = Coding(request.query["compress"])
        connection = Connection(request.path, coding, socket, request)
        self.connections.append(connection)
        connection.send(10, {"heartbeat_interval": self.heartbeat_ms, "_trace": ["local"]})
        writer = asyncio.create_task(connection.write(), name="discord-gateway-writer")
        code = 1006
        try:
            code = await self._read(connection)
        finally:
            # One that is closing still has to send the close frame.
            if not connection.closing:
                writer.cancel()
            with suppress(asyncio.CancelledError, ConnectionError, RuntimeError):
                await writer
            self._ended(connection, code)
        return socket

    def _ended(self, connection: Connection, code: int) -> None:
        connection.close_code = code
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection, session.lost_at = None, time.monotonic()
            # The client said good-bye: only these codes end its session.
            if code in (1000, 1001):
                self.sessions.pop(session.id, None)
        self._server.notify()

    async def _read(self, connection: Connection) -> int:
        """Take what the client sends; return the code with which it closed, 1006 where it just vanished."""
        socket = connection.socket
        while True:
            try:
                frame = await socket.receive(timeout=self.heartbeat_ms / 1000 * HEARTBEATS_WITHIN)
            except TimeoutError:
                await socket.close(code=4009)
                return 4009
            if frame.type is WSMsgType.CLOSE:
                return int(frame.data)
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return connection.closing or 1006
            message = orjson.loads(frame.data)
            self._take(connection, message["op"], message.get("d"))

    def _take(self, connection: Connection, op: int, data: Any) -> None:
        if op == 1:
            if not self.mute:
                connection.send(11)
        elif op in (2, 6):
            code, self.close_next = self.close_next, 0
            if code:
                connection.out.put_nowait(code)
            elif op == 2:
                self._identify(connection, data)
            else:
                self._resume(connection, data)
            self._server.notify()

    def _identify(self, connection: Connection, data: dict[str, Any]) -> None:
        connection.began, intents = "identify", int(data["intents"])
        self.identifies_left -= 1
        if self.identifies_left < 0:
            self._server.reset_token()
        if data["token"] != self._server.token:
            return connection.out.put_nowait(4004)
        if intents & MESSAGE_CONTENT and "message_content" not in self._server.privileged:
            return connection.out.put_nowait(4014)
        session = Session(intents, connection=connection)
        connection.session = session
        self.sessions[session.id] = session
        self._event(session, "READY", self._ready(session))
        for guild in self._server.guilds.values() if session.intents & GUILDS else ():
            self._event(session, "GUILD_CREATE", guild.created([self._server.bot]))
        return None

    def _ready(self, session: Session) -> dict[str, Any]:
        server = self._server
        return {
            "v": 10,
            "user": server.bot.payload(),
            "guilds": [{"id": guild.id, "unavailable": True} for guild in server.guilds.values()],
            "session_id": session.id,
            "resume_gateway_url": f"ws://127.0.0.1:{server.port}/resume",
            "application": {"id": server.application_id, "flags": server.application_flags},
        }

    def _resume(self, connection: Connection, data: dict[str, Any]) -> None:
        connection.began = "resume"
        if data["token"] != self._server.token:
            return connection.out.put_nowait(4004)
        session = next((one for one in self._remembered() if one.id == data["session_id"]), None)
        if session is None:
            return connection.send(9, False)
        if session.connection is not None and session.connection.open:
            session.connection.out.put_nowait(4000)
        session.connection, connection.session = connection, session
        missed = [body for seq, body in session.events if seq > int(data["seq"] or 0)]
        for number, body in enumerate(missed, 1):
            if not self.mute and not (self.resume_drops and number % self.resume_drops == 0):
                connection.out.put_nowait(body)
        self._event(session, "RESUMED", {"_trace": ["local"]})
        return None
