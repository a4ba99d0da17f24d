"""A web server on the loopback that a fetcher takes for one of the public internet; what it was asked."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from session.tools.web.fetching import Fetcher, direct

PUBLIC = "93.184.216.34"
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(
    body: bytes | str,
    kind: str = "text/html; charset=utf-8",
    *,
    status: str = "200 OK",
    packed: bool = False,
    **headers: str,
) -> bytes:
    """Write a whole answer; ``headers`` with underscores for hyphens."""
    data = body.encode() if isinstance(body, str) else body
    data = gzip.compress(data) if packed else data
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += ["Content-Encoding: gzip"] if packed else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def moved(to: str, status: str = "302 Found") -> bytes:
    return answer("", status=status, Location=to)


@dataclass
class Web:
    """``pages`` by path; ``names`` are the addresses of hosts; ``heads`` and ``asked`` what came."""

    pages: dict[str, Answer] = field(default_factory=dict)
    names: dict[str, Sequence[str]] = field(default_factory=lambda: {"example.test": [PUBLIC]})
    heads: list[str] = field(default_factory=list)
    # Address and port of each connection, as the fetcher meant it.
    asked: list[tuple[str, int]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    lookups: list[str] = field(default_factory=list)
    port: int = 0
    trusted: ssl.SSLContext | None = None

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append(host)
        if host not in self.names:
            raise OSError("no such host")
        return self.names[host]

    def fetcher(self, max_bytes: int = 512 * 1024) -> Fetcher:
        return Fetcher(max_bytes=max_bytes, resolve=self.resolve, connect=self.connect)

    def connect(self, context: ssl.SSLContext) -> httpx.AsyncBaseTransport:
        return _ToLocal(self, context)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            page = self.pages.get(
                head.split(" ")[1].partition("?")[0], answer("gone", status="404 Not Found")
            )
            if isinstance(page, bytes):
                writer.write(page)
            else:
                await page(writer)
            await writer.drain()
        writer.close()


class _ToLocal(httpx.AsyncBaseTransport):
    """Connects to the local server whatever address is meant, and notes which."""

    def __init__(self, web: Web, context: ssl.SSLContext) -> None:
        self._web = web
        self._inner = direct(web.trusted or context)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        self._web.asked.append((host, request.url.port or {"http": 80, "https": 443}[request.url.scheme]))
        if host in self._web.refused:
            raise httpx.ConnectError("refused")
        request.url = request.url.copy_with(host="127.0.0.1", port=self._web.port)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def web(*, tls: ssl.SSLContext | None = None, **pages: Answer) -> AsyncIterator[Web]:
    """Serve ``pages``, each by its name below ``/``, with TLS where a context is given."""
    place = Web({f"/{name}": page for name, page in pages.items()})
    server = await asyncio.start_server(place.serve, "127.0.0.1", 0, ssl=tls)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()


def certified(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a certificate for ``name``; return a server's context and that of a client which trusts it."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    whose = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    words = ("openssl", "req", "-x509", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate))
    subprocess.run([*words, *curve, *whose], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))
