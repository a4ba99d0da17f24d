"""What a gateway of several processes takes of memory and of CPU until it is ready: ``docs/workers.md``."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.application import Process
from bench.place import folder
from bench.row import Row
from tests.support.broker import Broker

CHATS = 4
COUNTS = (1, 2, 4)


@dataclass
class Taken:
    """Of one gateway: CPU of all its processes until ready, and their memory after a turn in each chat."""

    cpu_s: float
    gateway_mb: float
    worker_mb: float
    all_mb: float


def run() -> list[Row]:
    """Start a gateway with each number of workers on the same broker, one after the other."""
    with Broker() as broker:
        taken = {count: _taken(broker, count) for count in COUNTS}
    one = taken[1]
    rows, told = [], "told only: of all processes"
    for count, with_so_many in taken.items():
        name = "one process" if count == 1 else f"{count} workers"
        each = f"; the gateway {with_so_many.gateway_mb:.0f} MB resident"
        each += f", each worker {with_so_many.worker_mb:.0f} MB" if count > 1 else ""
        what = f"told only: echo, RabbitMQ, {CHATS} chats; what they share counted once{each}"
        rows += [
            _row(f"memory of all, {name}", with_so_many.all_mb, one.all_mb, "MB", what),
            _row(f"CPU until ready, {name}", with_so_many.cpu_s, one.cpu_s, "s", told),
        ]
    return rows


def _row(name: str, ours: float, of_one: float, unit: str, what: str) -> Row:
    return Row(name, ours, of_one, unit, "one process", ours / of_one, notes={"what": what})


def _taken(broker: Broker, count: int) -> Taken:
    config = {"broker.url": broker.url, "broker.name": f"workers{count}", "model.name": "echo"}
    with folder() as workspace:
        gateway = Process(workspace, config, role="all", workers=count)
        try:
            _, url = gateway.ready()
            pids = [gateway.process.pid, *_children(gateway.process.pid)]
            cpu_s = sum(_cpu_s(pid) for pid in pids)
            asyncio.run(_talk(url))
            resident = [_memory_mb(pid, "Rss") for pid in pids]
            shared_once = sum(_memory_mb(pid, "Pss") for pid in pids)
        finally:
            gateway.end()
    return Taken(cpu_s, resident[0], max(resident[1:], default=0.0), shared_once)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int, kind: str) -> float:
    """Return memory by ``smaps_rollup``: Rss all of it, Pss with what is shared divided up."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


async def _talk(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for number in range(CHATS):
            body = {"chat_id": f"bench{number}", "text": "hello"}
            answer = await client.post(f"{url}/v1/messages?wait=50", json=body)
            answer.raise_for_status()
