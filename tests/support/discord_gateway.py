"""The gateway of the local Discord: sessions, RESUME with replay, intents, compression, and its faults.

The faults are attributes, to be set at any time::

    gateway.refuse = "reset"      # cuts who connects; a number answers with that HTTP status; "" ends it
    gateway.mute = True           # sockets stay open, but no event and no heartbeat ack passes
    gateway.resume_drops = 2      # a RESUME replays without every second missed event (1: without any)
    gateway.close_next = 4014     # closes the next IDENTIFY or RESUME; a list: one after another (0: lets it)
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
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

GUILDS, GUILD_MEMBERS, GUILD_PRESENCES = 1 << 0, 1 << 1, 1 << 8
GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
PRIVILEGED = {"members": GUILD_MEMBERS, "presences": GUILD_PRESENCES, "message_content": MESSAGE_CONTENT}
ALL_INTENTS = (1 << 26) - 1
# After so many intervals without one the gateway closes with 4009.
HEARTBEATS_WITHIN = 2
KEPT_EVENTS = 20_000

Build = Callable[[int], dict[str, Any] | None]


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        with suppress(ImportError):
            module = __import__(name, fromlist=["ZstdCompressor"])
            return module, name
    return None, ""


class Coding:
    """What one connection's frames look like: plain, zlib-stream or zstd-stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "zlib-stream":
            self._zlib = zlib.compressobj()
        elif name == "zstd-stream":
            module, kind = _zstd()
            if module is None:
                raise LookupError("no zstd module is installed")
            made = module.ZstdCompressor()
            self._zstd = made.compressobj() if kind == "zstandard" else made
            self._flush = module.COMPRESSOBJ_FLUSH_BLOCK if kind == "zstandard" else made.FLUSH_BLOCK
        elif name:
            raise LookupError(name)

    def frames(self, data: bytes) -> list[bytes | str]:
        """The frames of one payload; a big zlib one comes in two, as the platform may send it."""
        if not self.name:
            return [data.decode()]
        if self.name == "zstd-stream":
            if hasattr(self._zstd, "FLUSH_BLOCK"):
                return [self._zstd.compress(data, self._flush)]
            return [self._zstd.compress(data) + self._zstd.flush(self._flush)]
        packed = self._zlib.compress(data) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        return [packed[:4096], packed[4096:]] if len(packed) > 4100 else [packed]


@dataclass(eq=False)
class Session:
    """What the platform remembers of a client: it may come back to it with RESUME."""

    intents: int
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    seq: int = 0
    events: deque[tuple[int, str, bytes]] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    connection: Connection | None = None
    lost_at: float = 0.0


@dataclass(eq=False)
class Connection:
    """One socket, as the test sees it afterwards."""

    path: str
    coding: Coding
    socket: web.WebSocketResponse
    request: web.Request
    at: float
    # Either "identify" or "resume".
    began: str = ""
    intents: int = 0
    heartbeats: int = 0
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
                if isinstance(frame, str):
                    await self.socket.send_str(frame)
                else:
                    await self.socket.send_bytes(frame)


class Gateway:
    """See the module's docstring for its faults."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self.heartbeat_ms = 41_250
        self.resume_window_s = 180.0
        self.refuse: str | int = ""
        self.mute = False
        self.resume_drops = 0
        self.close_next: int | list[int] = []
        self.identifies_left = 1000
        self.identifies_total = 1000
        self.max_concurrency = 1
        self.sessions: dict[str, Session] = {}
        self.connections: list[Connection] = []

    # -- what a test does ---------------------------------------------------------------------------

    @property
    def live(self) -> list[Connection]:
        """The connections that are open and know who they are."""
        return [one for one in self.connections if one.open and one.session is not None]

    def drop(self) -> None:
        """Cut every socket without a word."""
        for connection in self.connections:
            if connection.open and connection.request.transport is not None:
                connection.request.transport.abort()

    def close(self, code: int) -> None:
        """Close every socket with this code; the sessions stay resumable."""
        for connection in self.connections:
            if connection.open:
                connection.out.put_nowait(code)

    def reconnect(self) -> None:
        """Ask every client to reconnect and resume (op 7)."""
        for connection in self.live:
            connection.send(7)

    def invalidate(self, *, resumable: bool = False) -> None:
        """Tell every client that its session is invalid (op 9)."""
        for connection in self.live:
            connection.send(9, resumable)
        if not resumable:
            self.forget()

    def forget(self) -> None:
        """End every session: who resumes gets op 9."""
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
        """The sessions that live or can still be resumed."""
        old = time.monotonic() - self.resume_window_s
        for session in list(self.sessions.values()):
            if session.connection is None and session.lost_at < old:
                del self.sessions[session.id]
        return list(self.sessions.values())

    def _event(self, session: Session, event: str, data: Any) -> None:
        session.seq += 1
        body = orjson.dumps({"op": 0, "t": event, "s": session.seq, "d": data})
        session.events.append((session.seq, event, body))
        if session.connection is not None and session.connection.open and not self.mute:
            session.connection.out.put_nowait(body)

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Serve one socket until it closes."""
        if self.refuse == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if self.refuse:
            return web.Response(status=int(self.refuse), text="upstream connect error")
        socket = web.WebSocketResponse(max_msg_size=0, compress=False, timeout=2.0)
        await socket.prepare(request)
        try:
            coding = Coding(request.query.get("compress", ""))
        except LookupError:
            await socket.close(code=4012)
            return socket
        connection = Connection(request.path, coding, socket, request, time.monotonic())
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
            try:
                message = orjson.loads(frame.data)
                op, data = message["op"], message.get("d")
            except (orjson.JSONDecodeError, KeyError, TypeError):
                connection.out.put_nowait(4002)
                continue
            self._take(connection, op, data)

    def _take(self, connection: Connection, op: int, data: Any) -> None:
        if op == 1:
            connection.heartbeats += 1
            self._server.notify()
            if not self.mute:
                connection.send(11)
        elif op in (2, 6):
            code = self._next_close()
            if code:
                connection.out.put_nowait(code)
            elif connection.session is not None:
                connection.out.put_nowait(4005)
            elif op == 2:
                self._identify(connection, data)
            else:
                self._resume(connection, data)
            self._server.notify()
        elif connection.session is None:
            connection.out.put_nowait(4003)
        elif op == 8:
            self._members(connection.session, data)
        elif op not in (3, 4):
            connection.out.put_nowait(4001)

    def _next_close(self) -> int:
        if isinstance(self.close_next, list):
            return self.close_next.pop(0) if self.close_next else 0
        code, self.close_next = self.close_next, []
        return code

    def _identify(self, connection: Connection, data: dict[str, Any]) -> None:
        connection.began, connection.intents = "identify", int(data["intents"])
        self.identifies_left -= 1
        if self.identifies_left < 0:
            self._server.reset_token()
        if data["token"] != self._server.token:
            return connection.out.put_nowait(4004)
        if connection.intents & ~ALL_INTENTS:
            return connection.out.put_nowait(4013)
        denied = [bit for name, bit in PRIVILEGED.items() if name not in self._server.privileged]
        if any(connection.intents & bit for bit in denied):
            return connection.out.put_nowait(4014)
        session = Session(connection.intents, connection=connection)
        connection.session = session
        self.sessions[session.id] = session
        self._event(session, "READY", self._ready(session))
        for guild in self._server.guilds.values() if session.intents & GUILDS else ():
            everyone = session.intents & GUILD_MEMBERS
            seen = [person for person, _ in guild.members.values() if everyone or person is self._server.bot]
            self._event(session, "GUILD_CREATE", guild.created(seen))
        return None

    def _ready(self, session: Session) -> dict[str, Any]:
        server = self._server
        return {
            "v": 10,
            "user": server.bot.payload()
            | {"verified": True, "mfa_enabled": False, "flags": 0, "email": None},
            "guilds": [{"id": guild.id, "unavailable": True} for guild in server.guilds.values()],
            "session_id": session.id,
            "session_type": "normal",
            "resume_gateway_url": f"ws://127.0.0.1:{server.port}/resume",
            "application": {"id": server.application_id, "flags": server.application_flags},
            "private_channels": [],
            "relationships": [],
            "user_settings": {},
            "presences": [],
            "_trace": ["local"],
        }

    def _resume(self, connection: Connection, data: dict[str, Any]) -> None:
        connection.began = "resume"
        if data["token"] != self._server.token:
            return connection.out.put_nowait(4004)
        session = next((one for one in self._remembered() if one.id == data["session_id"]), None)
        if session is None:
            return connection.send(9, False)
        if int(data["seq"] or 0) > session.seq:
            return connection.out.put_nowait(4007)
        if session.connection is not None and session.connection.open:
            session.connection.out.put_nowait(4000)
        session.connection, connection.session = connection, session
        connection.intents = session.intents
        if session.events and session.events[0][0] > int(data["seq"] or 0) + 1:
            return connection.send(9, False)
        missed = [body for seq, _, body in session.events if seq > int(data["seq"] or 0)]
        for number, body in enumerate(missed, 1):
            if not self.mute and not (self.resume_drops and number % self.resume_drops == 0):
                connection.out.put_nowait(body)
        self._event(session, "RESUMED", {"_trace": ["local"]})
        return None

    def _members(self, session: Session, data: dict[str, Any]) -> None:
        guild = self._server.guilds[str(data["guild_id"])]
        wanted = {str(person) for person in data.get("user_ids") or ()}
        query = data.get("query") or ""
        found = [
            guild.member(person)
            for person, _ in guild.members.values()
            if (person.id in wanted if wanted else person.name.startswith(query))
        ]
        chunk = {"guild_id": guild.id, "members": found, "chunk_index": 0, "chunk_count": 1, "not_found": []}
        self._event(session, "GUILD_MEMBERS_CHUNK", chunk | {"nonce": data.get("nonce")})
