"""What it takes to answer Prometheus while 10,000 chats have a message in hand."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

from bench.application import Process, letter
from bench.place import folder
from bench.row import Row, median
from gateway.queue.embedded.mailbox import EmbeddedMailbox

KEYS, TIMES = 10_000, 31
LIMIT_MS = 20.0
WITHIN_S = 60
# No turn ends while it is measured.
CONFIG = {"broker.url": "embedded", "model.name": "echo", "model.echo_delay_s": 3600, "limits.drain_s": 0}


def run() -> list[Row]:
    """Measure a scrape, from the request to the whole answer, beside an idle one."""
    with folder() as workspace:
        idle, _ = asyncio.run(_measured(workspace / "idle", 0))
        busy, size = asyncio.run(_measured(workspace / "busy", KEYS))
    notes = {"idle": f"{idle:.1f} ms", "answer": f"{size / 1024:.1f} kB"}
    return [
        Row("/metrics, 10,000 keys", busy, LIMIT_MS, "ms", "limit", busy / LIMIT_MS, at_most=1, notes=notes)
    ]


async def _measured(workspace: Path, keys: int) -> tuple[float, int]:
    if keys:
        await _lay(workspace, keys)
    daemon = Process(workspace, CONFIG, role="all")
    try:
        _, url = daemon.ready()
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            await _until_taken(client, url, keys)
            took = [await _scrape(client, url) for _ in range(TIMES)]
        return median([ms for ms, _ in took]), took[-1][1]
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


async def _until_taken(client: httpx.AsyncClient, url: str, keys: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while f"chat_gateway_lane_letters {float(keys)}" not in (await client.get(f"{url}/metrics")).text:
            await asyncio.sleep(0.1)


async def _scrape(client: httpx.AsyncClient, url: str) -> tuple[float, int]:
    began = time.perf_counter()
    answer = await client.get(f"{url}/metrics")
    took_ms = (time.perf_counter() - began) * 1000
    return took_ms, len(answer.raise_for_status().content)
