"""The open connections: how many there may be, how long each may take, and which give way to new ones."""

from __future__ import annotations

import asyncio
import fcntl
import math
import termios
from array import array
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from uvicorn.server import ServerState

log = structlog.get_logger("http")

# From the connection to the end of the headers, however they drip in.
HEADERS_WITHIN_S = 10.0
# So often it is looked whether a client takes what it is sent.
LOOK_EVERY_S = 5.0
# How long a connection that was answered may be silent before its next request begins.
IDLE_S = 5
# From the headers of a request that was not let in to the end of its answer.
STRANGER_WITHIN_S = 40.0
TELL_EVERY_S = 10.0
MAX_CONNECTIONS = 10_000
# Of clients that connect all at once none is cut before it had a chance to ask; idle they cost 25 MB.
MAX_STRANGERS = 4_096
MAX_HEADERS_BYTES = 16 * 1024
LET_IN = "chat_gateway.let_in"


class Connections:
    """Every open connection of one server, in three groups.

    Strangers have not been let in: their headers are incomplete, or they have shown no token. The resting
    ones were let in and wait for their next request. The working ones have a request that was let in, such
    as a stream of events: they never give way.

    Args:
        descriptors: how many this process may hold; connections take half of them at most.
    """

    def __init__(self, descriptors: int) -> None:
        self.most = max(8, min(MAX_CONNECTIONS, descriptors // 2))
        self.most_strangers = min(MAX_STRANGERS, self.most)
        # Both are in the order in which they entered the group.
        self._strangers: dict[Connection, None] = {}
        self._resting: dict[Connection, None] = {}
        self._working: set[Connection] = set()
        self._told_at = -math.inf

    def __len__(self) -> int:
        return len(self._strangers) + len(self._resting) + len(self._working)

    def enter(self, connection: Connection) -> bool:
        """Take a new one in as a stranger, in place of the one that has waited longest; False: no room."""
        if (len(self._strangers) >= self.most_strangers or len(self) >= self.most) and not self._give_way():
            return False
        self._strangers[connection] = None
        return True

    def work(self, connection: Connection) -> None:
        """Note that a request was let in."""
        self.leave(connection)
        self._working.add(connection)

    def rest(self, connection: Connection) -> None:
        """Note that an answer is complete; who was not let in stays a stranger, at its place in the line."""
        if connection in self._working:
            self._working.discard(connection)
            self._resting[connection] = None

    def leave(self, connection: Connection) -> None:
        """Note that one is gone; it need not be here."""
        self._strangers.pop(connection, None)
        self._resting.pop(connection, None)
        self._working.discard(connection)

    def tell_refused(self, now: float) -> None:
        """Log that there is no room, at most once in ten seconds: a flood of clients is none of the log."""
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            log.warning("connections.full", open=len(self))

    def _give_way(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            # One whose answer is still on its way to a slow client is left alone.
            oldest = next((one for one in self._resting if not one.unsent_bytes), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.cut("gave way")
        return True


class Config(uvicorn.Config):
    """What each connection of a server is handed by uvicorn, with the group of all of them."""

    def __init__(self, app: Any, *, connections: Connections, **rest: Any) -> None:
        super().__init__(app, http=Connection, **rest)
        self.connections = connections


class Connection(H11Protocol):
    """One connection: uvicorn's, with a deadline while nobody was let in over it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = config.connections
        self._routes: Any = self.app
        self.app = self._carry
        self._deadline: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._allowed_s = self._left_s = 0.0

    @property
    def unsent_bytes(self) -> int:
        """How much of an answer the client has not taken yet."""
        return self.transport.get_write_buffer_size() + _in_system(self.transport)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, or answer 503 at once where all places are taken."""
        super().connection_made(transport)
        if self._all.enter(self):
            self._within(HEADERS_WITHIN_S)
            return
        self._all.tell_refused(self.loop.time())
        transport.write(
            _answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections are open", "try again in 5 s")
        )
        transport.close()
        # A client that does not even take this must not hold its descriptor.
        self._within(1.0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.gone()
        super().connection_lost(exc)

    def gone(self) -> None:
        """Give back the place of what has ended: this connection, or the WebSocket that it became."""
        self._all.leave(self)
        self._cancel()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Become a WebSocket; it is a stranger until it is let in, or its time is over."""
        self._within(STRANGER_WITHIN_S)
        super().handle_websocket_upgrade(event)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the connection is being closed: what still comes then is nobody's."""
        if not self.transport.is_closing():
            super().data_received(data)

    async def _carry(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request; the application calls ``scope["extensions"][LET_IN]`` once it is let in."""
        if not self.transport.is_closing():
            self._within(STRANGER_WITHIN_S)
        scope.setdefault("extensions", {})[LET_IN] = self.let_in
        await self._routes(scope, receive, send)

    def let_in(self) -> None:
        """Note that whoever asks may; no deadline holds from here on."""
        # The line may have broken meanwhile: then nothing is to be taken in again.
        if not self.transport.is_closing():
            self._cancel()
            self._all.work(self)

    def on_response_complete(self) -> None:
        """Give the client the time of one more request, counted as a whole."""
        if not self.transport.is_closing():
            self._all.rest(self)
        # Also while it closes: a client that takes nothing would keep its last answer, and the descriptor.
        self._within(IDLE_S + HEADERS_WITHIN_S)
        super().on_response_complete()

    def _within(self, seconds: float) -> None:
        self._cancel()
        self._allowed_s = self._left_s = seconds
        self._wait()

    def _wait(self) -> None:
        self._unsent_bytes = self.unsent_bytes
        step_s = min(LOOK_EVERY_S, self._left_s)
        self._deadline = self.loop.call_later(step_s, self._look, step_s)

    def _look(self, step_s: float) -> None:
        self._left_s -= step_s
        if 0 < self.unsent_bytes < self._unsent_bytes:
            # The client is slow, but it takes what it is sent.
            self._left_s = self._allowed_s
        if self._left_s > 0:
            self._wait()
            return
        self._all.leave(self)
        self.cut("took too long")

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has headers over their limit."""
        hint = f"send HTTP/1.1 with headers of at most {MAX_HEADERS_BYTES // 1024} KiB"
        self.transport.write(_answer(HTTPStatus.BAD_REQUEST, "this is no HTTP request", hint))
        self.transport.close()

    def cut(self, why: str) -> None:
        """Close the connection at once, whatever is still to be sent."""
        log.debug("connection.cut", reason=why)
        self._cancel()
        self.transport.abort()


def _in_system(transport: asyncio.Transport) -> int:
    """How much the system holds that the client's machine has not acknowledged; 0 where it does not say.

    It asks for more only when a third of a buffer of megabytes is free: a client that takes little by little
    would seem to take nothing meanwhile.
    """
    held = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
    except (OSError, ValueError):
        return 0
    return held[0]


def _answer(status: HTTPStatus, error: str, hint: str) -> bytes:
    """Write down an answer of our form that ends its connection."""
    body = orjson.dumps({"error": error, "hint": hint})
    again = "Retry-After: 5\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = (
        f"HTTP/1.1 {status:d} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{again}Connection: close\r\n\r\n"
    )
    return head.encode() + body
