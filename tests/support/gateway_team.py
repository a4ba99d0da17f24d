"""A gateway with workers, as tests look at it: which processes there are, and which of them has a chat."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.support.harness import Daemon, ask, status
from tests.support.until import until


async def workers(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await status(daemon))["workers"]
    return found


async def pids(daemon: Daemon) -> list[int]:
    return [each["pid"] for each in await workers(daemon)]


async def worker_for(daemon: Daemon, key: str) -> int:
    """Return the process id of the worker that has the partition of a chat."""
    rows = await workers(daemon)
    partition = partition_of(slot_of(key), sum(len(row["partitions"]) for row in rows))
    return next(int(row["pid"]) for row in rows if partition in row["partitions"])


async def worker_of(daemon: Daemon, key: str, id_: str) -> int:
    """Ask something in a chat; return the process id of the worker that answered."""
    assert await ask(daemon, key, id_, "who?") is not None
    full = f"{key.partition(':')[0]}:{id_}"
    await until(lambda: _number(daemon, full))
    return (await pids(daemon))[_number(daemon, full) - 1]


def _number(daemon: Daemon, id_: str) -> int:
    for line in daemon.log.decode().splitlines():
        if line.startswith("{") and line.endswith("}"):
            event = json.loads(line)
            if event.get("event") == "turn.replied" and event.get("id") == id_:
                return int(event["worker"])
    return 0


async def post(daemon: Daemon, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{daemon.url}{path}", json=body)


async def running(daemon: Daemon, *keys: str, ended: asyncio.Task[Any] | None = None) -> None:
    """Wait until a turn runs in each of these chats, or ``ended`` is over: a look may come late."""

    async def so() -> bool:
        if ended is not None and ended.done():
            return True
        lanes = (await status(daemon))["lanes"]
        return {lane["key"] for lane in lanes if lane["id"] is not None} >= set(keys)

    await until(so, 120)


async def gone(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")

    def so() -> bool:
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    await until(so, 120)
