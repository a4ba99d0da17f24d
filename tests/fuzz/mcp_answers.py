"""A target that is a client of an MCP server: what it answers, request by request, is the input."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from session.errors import SessionError
from session.mcp.connection import opened
from session.mcp.process import unconfined
from session.mcp.spec import ServerSpec
from tests.fuzz.targets import Once, Target

# What a server does not answer is waited for: by the product for half a minute, which nobody has here.
PATIENCE_S = 2.0


class _Server(ThreadingHTTPServer):
    """Answers each method with what the input says of it: an object with a result for each."""

    daemon_threads = True
    answers: bytes = b""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        if "id" not in asked:
            self._answer(202, b"")
            return
        body = self.server.answers
        with suppress(ValueError, RecursionError):
            found = json.loads(body)
            if isinstance(found, dict):
                body = _answer(asked, found)
        self._answer(200, body)

    def do_GET(self) -> None:
        self._answer(405, b"")

    do_DELETE = do_GET  # noqa: N815 - the name that the library asks for

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _answer(asked: dict[str, Any], found: dict[str, Any]) -> bytes:
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] in found:
        answer["result"] = found[asked["method"]]
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    # Whole answers, to be spoilt as a whole.
    answer |= found.get("answer") if isinstance(found.get("answer"), dict) else {}
    return json.dumps(answer).encode()


async def _used(url: str) -> None:
    """Connect, list and call: each comes about, or fails in words."""
    spec = ServerSpec("fuzz", url=url)
    with suppress(SessionError, TimeoutError):
        async with (
            asyncio.timeout(PATIENCE_S),
            opened(spec, Path(), launch=unconfined, clock=time.monotonic) as connection,
        ):
            listing = await connection.list()
            for tool in listing.tools[:2]:
                with suppress(SessionError):
                    answer = await connection.call(tool, {}, timeout_s=PATIENCE_S)
                    answer.text.encode()


@contextmanager
def _opened() -> Iterator[Once]:
    with _Server(("127.0.0.1", 0), _Answering) as server, asyncio.Runner() as runner:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def once(data: bytes) -> None:
            server.answers = data
            runner.run(_used(f"http://127.0.0.1:{server.server_address[1]}/mcp"))

        try:
            yield once
        finally:
            server.shutdown()
            thread.join()


TARGETS = {target.name: target for target in (Target("mcp", _opened, form="json"),)}
