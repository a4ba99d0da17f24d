"""Serves the API and the page of one application: binds its socket at once, runs in the daemon's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

import durable
from gateway.app import daemons
from gateway.errors import GatewayError
from gateway.http import (
    completions,
    cron,
    events,
    media,
    memory,
    messages,
    openapi,
    operation,
    page,
    pending,
    sessions,
)
from gateway.http.errors import add_error_handlers
from gateway.http.security import Gate, Guard, Rates, Streams, add_login_routes
from gateway.service.chats import ChatService
from gateway.service.tokens import Tokens

log = structlog.get_logger("http")

# A client that sends pings and reads no pong is cut off when so much waits to be sent.
MAX_WAITING_BYTES = 8 * 1024 * 1024


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def data_received(self, data: bytes) -> None:
        """Read frames; a client that breaks the protocol loses its connection, without an error of ours."""
        try:
            super().data_received(data)
        except (InvalidState, AssertionError):
            self.transport.close()
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            # uvicorn leaves what only looks like an upgrade, such as a POST, without an answer.
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def handle_ping(self) -> None:
        """Answer, as long as the answers are taken."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.transport.abort()


if TYPE_CHECKING:
    from gateway.app.application import Application

END_WITHIN_S = 2
# Clients have nothing to say over a WebSocket.
MAX_SOCKET_BYTES = 4 * 1024
MAX_HEADERS_BYTES = 16 * 1024
# How long a connection may be silent after an answer before its next request.
IDLE_S = 5
BACKLOG = 512
# The kernel drops a peer that acknowledges nothing for so long: it would hold a descriptor for ever.
SILENT_PEER_MS = 60_000


class HttpServer:
    """The HTTP server of one application.

    ``watched``: it serves health and metrics alone, on ``metrics.port``.
    """

    def __init__(self, application: Application, *, watched: bool = False) -> None:
        http, metrics_port = application.settings.http, application.settings.metrics.port
        self._host, self._port = http.host, metrics_port if watched else http.port
        self._name = "metrics.port" if watched else "http.port"
        self._watched = watched
        self._socket: socket.socket | None = None
        self.bound = asyncio.Event()
        self.chats = ChatService(application)
        self.descriptors = daemons.limit()
        self._gate = Gate(
            host=http.host,
            allowed_hosts=http.allowed_hosts,
            token=http.token.get_secret_value(),
            tokens=Tokens(application.settings.state),
            rates=Rates(http.requests_per_minute),
        )

    def bind(self) -> None:
        """Take the port; clients that connect from now on are answered once ``serve`` runs.

        Raises:
            GatewayError: the port is taken or the host is not one of this machine.
        """
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.socket(family, kind, number)
        except OSError as error:
            raise GatewayError(
                f"http.host {self._host}: {error.strerror or error}", hint="set http.host to an address"
            ) from None
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_MS)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            raise GatewayError(
                f"{self._name} {self._port} on {self._host} cannot be used: {error.strerror or error}",
                hint=f"set {self._name} to a free port"
                + ("" if self._watched else ", or to 0 for any free port"),
            ) from None
        bound.setblocking(False)
        self._socket = bound
        self.bound.set()

    @property
    def url(self) -> str:
        """Where this machine reaches the server."""
        assert self._socket is not None
        port = self._socket.getsockname()[1]
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"

    async def serve(self, application: Application) -> None:
        """Answer requests until cancelled; open streams end then, and what still runs two seconds later.

        Where ``bind`` was not called, the port is taken once the queue is open.
        """
        if self._socket is None:
            await application.mailbox.ready()
            self.bind()
        assert self._socket is not None
        build = build_watched_app if self._watched else build_app
        guarded = Guard(build(self.chats, self._gate), self._gate, Streams(self.descriptors))
        server = _Server(
            uvicorn.Config(
                RequestIds(guarded),
                log_config=None,
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws=Socket,
                ws_max_size=MAX_SOCKET_BYTES,
                # What it saves on a line costs each of many clients the time of a turn.
                ws_per_message_deflate=False,
                http="h11",
                h11_max_incomplete_event_size=MAX_HEADERS_BYTES,
                timeout_keep_alive=IDLE_S,
                server_header=False,
                timeout_graceful_shutdown=END_WITHIN_S,
            )
        )
        running = asyncio.ensure_future(server.serve(sockets=[self._socket]))
        sweeping = asyncio.ensure_future(media.keep_swept(application.settings))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.chats.closing.set()
            server.should_exit = True
            await asyncio.wait((running,), timeout=END_WITHIN_S + 1)
            running.cancel()
            raise
        finally:
            sweeping.cancel()
            self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def build_app(chats: ChatService, gate: Gate) -> FastAPI:
    """Put all routes together."""
    app = build_watched_app(chats, gate)
    for part in (messages, completions, events, pending, sessions, memory, cron, operation, media):
        part.add_routes(app.router, chats)
    add_login_routes(app.router, gate)
    page.add_routes(app.router)
    return app


def build_watched_app(chats: ChatService, gate: Gate) -> FastAPI:
    """Put together what a process without clients serves: whether it lives, and what it counts."""
    app = FastAPI(
        title="chat-gateway",
        version=version("chat-gateway"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_error_handlers(app)
    operation.add_health_routes(app.router, chats, gate)
    # Made when it is first asked for: it takes longer than all the rest of a start.
    app.openapi = cache(lambda: openapi.document(app))  # type: ignore[method-assign]
    return app


HEADER = b"x-request-id"
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_GIVEN = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class RequestIds:
    """The outermost ASGI layer: ``X-Request-Id`` as given, or a new one, in the answer and in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its name."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        name = _given(scope) or durable.new_id().encode()
        began = durable.monotonic()

        async def named(message: Message) -> None:
            if message["type"] in _STARTS:
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            if message["type"] == "http.response.start":
                took_ms = round((durable.monotonic() - began) * 1000, 1)
                # Not the query: it may name a person.
                log.debug(
                    "request.answered",
                    method=scope["method"],
                    path=scope["path"],
                    status=message["status"],
                    took_ms=took_ms,
                )
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=name.decode()):
            await self._app(scope, receive, named)


def _given(scope: Scope) -> bytes | None:
    """Return the one that the client gave; None where it gave none, several, or what is no name."""
    given = [value for key, value in scope["headers"] if key == HEADER]
    return given[0] if len(given) == 1 and _GIVEN.fullmatch(given[0]) else None
