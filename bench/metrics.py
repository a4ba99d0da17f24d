"""What it takes to answer Prometheus, and whoever asks for the status, while thousands of chats wait."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

from bench.application import Process, letter
from bench.backlog import Backlog, of_ours
from bench.place import folder
from bench.row import Row, median
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from tests.support.broker import Broker

KEYS, RABBIT_KEYS, TIMES = 10_000, 2_000, 31
LIMIT_MS = 20.0
WITHIN_S = 60
# No turn ends while it is measured.
CONFIG = {"model.name": "echo", "model.echo_delay_s": 3600, "limits.drain_s": 0}
PATHS = ("/metrics", "/v1/status")
Measured = dict[str, tuple[float, int]]


def run() -> list[Row]:
    """Measure an answer, from the request to its end, beside an idle one: the median, and its size."""
    with folder() as workspace:
        idle = asyncio.run(_embedded(workspace / "idle", 0))
        busy = asyncio.run(_embedded(workspace / "busy", KEYS))
    with folder() as workspace, Broker() as broker:
        rabbit = asyncio.run(_rabbit(workspace, broker.url))
    rows: list[Row] = []
    for name, found in ((f"{KEYS:,} keys", busy), (f"{RABBIT_KEYS:,} keys, RabbitMQ", rabbit)):
        for path in PATHS:
            ms, size = found[path]
            notes = {"idle": f"{idle[path][0]:.1f} ms", "answer": f"{size / 1024:.1f} kB"}
            ratio = ms / LIMIT_MS
            rows.append(Row(f"{path}, {name}", ms, LIMIT_MS, "ms", "limit", ratio, at_most=1, notes=notes))
    return rows


async def _embedded(workspace: Path, keys: int) -> Measured:
    if keys:
        await _lay(workspace, keys)
    return await _measured(workspace, "embedded", keys)


async def _rabbit(workspace: Path, url: str) -> Measured:
    first = Process(workspace, CONFIG | {"broker.url": url}, role="all")
    try:
        first.ready()
        await Backlog(RABBIT_KEYS, 1, 0, 0).lay(url, of_ours)
    finally:
        first.end()
    return await _measured(workspace, url, RABBIT_KEYS)


async def _measured(workspace: Path, url: str, keys: int) -> Measured:
    daemon = Process(workspace, CONFIG | {"broker.url": url}, role="all")
    try:
        _, base = daemon.ready()
        async with httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as client:
            await _until_taken(client, keys)
            found: Measured = {}
            for path in PATHS:
                took = [await _asked(client, path) for _ in range(TIMES)]
                found[path] = (median([ms for ms, _ in took]), took[-1][1])
            return found
    finally:
        daemon.end()


async def _lay(workspace: Path, keys: int) -> None:
    """Put a letter for each key into the queue, before anything takes from it."""
    mailbox = EmbeddedMailbox(workspace / "state")
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(mailbox.serve())
        await mailbox.ready()
        posts = [letter(f"web:bench{number}", 0, f"at {datetime.now(UTC)}") for number in range(keys)]
        await asyncio.gather(*(mailbox.put(post) for post in posts))
        serving.cancel()


async def _until_taken(client: httpx.AsyncClient, keys: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while f"chat_gateway_lane_letters {float(keys)}" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.1)


async def _asked(client: httpx.AsyncClient, path: str) -> tuple[float, int]:
    began = time.perf_counter()
    answer = await client.get(path)
    took_ms = (time.perf_counter() - began) * 1000
    return took_ms, len(answer.raise_for_status().content)
