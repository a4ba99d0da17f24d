"""Targets that are the gateway's own server: raw bytes at its port, and frames at its WebSocket."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from tests.fuzz.targets import Once, Target, folder
from tests.gateway.http_place import open_place

# A request that is not whole is waited for: by the server for longer than anybody has here.
QUIET_S = 0.05
CLOSED_S = 8.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_UPGRADE = (
    b"GET /v1/ws?key=web:fuzz HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_ASKED = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
Say = Callable[[socket.socket, bytes], bytes]


class _Gateway:
    """A gateway in a thread of its own; what its loop could not deliver is kept."""

    def __init__(self) -> None:
        self.port: Future[int] = Future()
        self.faults: list[str] = []
        self._ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @contextmanager
    def running(self) -> Iterator[int]:
        self._thread.start()
        yield self.port.result(60)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._caught)
        with folder() as place:
            async with open_place(place) as found:
                self.port.set_result(int(found.server.url.rstrip("/").rpartition(":")[2]))
                await self._ends.wait()

    def _caught(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


def _read(connection: socket.socket) -> bytes:
    """Read until the other side closes, which it has to do once ours has ended."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def _raw(connection: socket.socket, data: bytes) -> bytes:
    """Send it, see what is answered at once, and leave."""
    connection.sendall(data)
    connection.settimeout(QUIET_S)
    found = b""
    with suppress(TimeoutError):
        found = connection.recv(65536)
    connection.settimeout(CLOSED_S)
    connection.shutdown(socket.SHUT_WR)
    return found + _read(connection)


def _frames(connection: socket.socket, data: bytes) -> bytes:
    """Send it as raw bytes of frames, or as what one masked frame holds: the first byte says which."""
    connection.sendall(_UPGRADE)
    opened = b""
    while b"\r\n\r\n" not in opened:
        opened += connection.recv(65536)
    assert opened.startswith(b"HTTP/1.1 101")
    if data[:1] < b"\x80":
        body = data[2:]
        head = bytes([data[1] if len(data) > 1 else 0x81])
        size = len(body)
        length = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack("!H", size)
        data = head + length + bytes(4) + body
    connection.sendall(data[:60_000])
    connection.shutdown(socket.SHUT_WR)
    return _read(connection)


def _target(name: str, say: Say) -> Target:
    @contextmanager
    def opened() -> Iterator[Once]:
        # Its log would be longer than all that is sent.
        os.environ.setdefault("CHAT_GATEWAY_LOG__LEVEL", "critical")
        gateway = _Gateway()
        with gateway.running() as port:

            def once(data: bytes) -> None:
                said = _told(port, say, data)
                statuses = [int(code) for code in _STATUS.findall(said)]
                assert 500 not in statuses, said[:500]
                assert _told(port, lambda link, ask: (link.sendall(ask), _read(link))[1], _ASKED)[:12] in (
                    b"HTTP/1.1 200",
                    b"HTTP/1.1 503",
                )
                assert not gateway.faults, gateway.faults

            yield once

    return Target(name, opened, limit_s=20, max_bytes=4096)


def _told(port: int, say: Say, data: bytes) -> bytes:
    # It may be cut in the middle of what is sent.
    with (
        socket.create_connection(("127.0.0.1", port), timeout=CLOSED_S) as connection,
        suppress(ConnectionError),
    ):
        return say(connection, data)
    return b""


TARGETS = {target.name: target for target in (_target("http", _raw), _target("websocket", _frames))}
