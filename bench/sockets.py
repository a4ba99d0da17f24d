"""500 clients look on over WebSocket: how much longer a turn takes for it."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from bench.application import process
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median
from tests.support.harness import ROOT

CLIENTS, DELAY_S, TURNS, CHAT = 500, 1.0, 12, "web:seen"
KINDS = {"none": "", "others": "web:other{}", "same": CHAT}
Walls = dict[str, list[float]]


def run() -> list[Row]:
    """Alternate between nobody, 500 clients of 500 other chats, and 500 clients of the chat itself."""
    walls = run_loop(_measure)
    alone = median(walls["none"])
    what = f"embedded queue, a model that takes {DELAY_S:g} s, {TURNS} turns each by POST /v1/messages?wait"
    return [
        Row(
            name,
            median(walls[kind]),
            alone,
            "s",
            "nobody looks on",
            median(walls[kind]) / alone,
            at_most=1.1,
            notes={"what": what, "samples": {"ours": walls[kind], "peer": walls["none"]}},
        )
        for name, kind in (
            (f"a turn while {CLIENTS} look at other chats", "others"),
            (f"a turn while {CLIENTS} look at its chat", "same"),
        )
    ]


async def _measure() -> Walls:
    walls: Walls = {kind: [] for kind in KINDS}
    with folder() as workspace:
        config = {"model.echo_delay_s": DELAY_S}
        with process(workspace, config, role="all") as daemon:
            _, url = daemon.ready()
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                await _turn(http)
                for _ in range(2):
                    for kind, key in KINDS.items():
                        async with _watchers(url, key):
                            walls[kind] += [await _turn(http) for _ in range(TURNS // 2)]
    return walls


async def _turn(http: httpx.AsyncClient) -> float:
    began = time.perf_counter()
    answer = await http.post("/v1/messages?wait=60", json={"key": CHAT, "text": "hello " * 40})
    answer.raise_for_status()
    return time.perf_counter() - began


@asynccontextmanager
async def _watchers(url: str, key: str) -> AsyncIterator[None]:
    """Let a process of its own look on, so that what it costs to read is none of the turn's."""
    if not key:
        yield
        return
    command = [sys.executable, "-m", "bench.sockets", url, key]
    watching = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert watching.stdout is not None
        ready = await asyncio.to_thread(watching.stdout.readline)
        assert ready == b"ready\n", ready
        yield
    finally:
        watching.terminate()
        watching.wait()


class _Watcher(asyncio.Protocol):
    """Reads whatever comes."""

    def __init__(self, request: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self.open: asyncio.Future[bytes] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.open.done():
            self.open.set_result(data)


async def _watch(url: str, key: str) -> None:
    loop = asyncio.get_running_loop()
    address = httpx.URL(url)
    for number in range(CLIENTS):
        name = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET /v1/ws?key={key.format(number)} HTTP/1.1\r\nHost: {address.host}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {name}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        watcher = _Watcher(request, loop)
        await loop.create_connection(lambda watcher=watcher: watcher, address.host, address.port)
        answer = await watcher.open
        assert answer.startswith(b"HTTP/1.1 101"), answer
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(lambda: _watch(sys.argv[1], sys.argv[2]))
