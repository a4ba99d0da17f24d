"""A SOCKS5 proxy without a password, for one machine: it counts what went through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType


class SocksServer:
    """``async with SocksServer() as proxy`` listens on a free port; ``hosts`` are those it connected to."""

    def __init__(self) -> None:
        self.hosts: list[tuple[str, int]] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> SocksServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"socks5://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            _, count = await reader.readexactly(2)
            await reader.readexactly(count)
            writer.write(b"\x05\x00")
            _, _, _, kind = await reader.readexactly(4)
            if kind == 1:
                host = socket.inet_ntoa(await reader.readexactly(4))
            else:
                host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
            port = int.from_bytes(await reader.readexactly(2))
            self.hosts.append((host, port))
            there, back = await asyncio.open_connection(host, port)
            writer.write(b"\x05\x00\x00\x01" + bytes(6))
            with contextlib.closing(back):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
