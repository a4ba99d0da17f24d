"""A server of the library's own over HTTP, as a program that ends with its test.

``python http_server.py LOG PORT new|old TOKEN``: it speaks the newer era, or only the one before; requests
without the token are refused.
"""

from __future__ import annotations

import gzip
import json
import socket
import sys
from typing import Any

import uvicorn

LOG, PORT, ERA, TOKEN = sys.argv[1:5]

from tests.session.mcp.good_server import server  # noqa: E402 - it reads its log from the arguments

app = server.streamable_http_app()
UNKNOWN = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32000, "message": "Bad Request: Unsupported protocol version"},
}


async def guarded(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] == "/told":
            # Many a server says back which key it does not know.
            key = headers.get("authorization", "").partition(" ")[2]
            words = f"unknown key {key} for {scope['query_string'].decode()}, ask for another"
            told = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": words}}
            await _answer(send, 401, told)
            return
        if headers.get("authorization") != f"Bearer {TOKEN}":
            await _answer(send, 401, {"error": "who are you?"})
            return
        if scope["path"] == "/away":
            await _answer(send, 307, {}, (b"location", b"http://127.0.0.2:1/mcp"))
            return
        if scope["path"] == "/bomb":
            await _answer(send, 200, {"x": "x" * 6_000_000})
            return
        if scope["path"] == "/packed":
            packed = gzip.compress(json.dumps({"x": "x" * 6_000_000}).encode())
            await _answer(send, 200, packed, (b"content-encoding", b"gzip"))
            return
        # As a server of the era before answers a version that it does not know.
        if ERA == "old" and headers.get("mcp-protocol-version") == "2026-07-28":
            await _answer(send, 400, UNKNOWN)
            return
    await app(scope, receive, send)


async def _answer(send: Any, status: int, body: Any, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    await send({"type": "http.response.body", "body": data})


class Announced(uvicorn.Server):
    """Says on stdout when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print("listening", flush=True)


if __name__ == "__main__":
    Announced(uvicorn.Config(guarded, port=int(PORT), log_level="error")).run()
