"""How long a person waits for the program, and how much memory it takes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import httpx

from bench.application import Process
from bench.place import folder
from bench.row import Row, median

TIMES, TURNS = 9, 200
HELP_S, READY_S, RESIDENT_MB = 0.25, 1.5, 90
CONFIG = {"broker.url": "embedded", "model.name": "echo"}


def run() -> list[Row]:
    """Measure ``--help``, the way to ``ready``, and a daemon after 200 turns."""
    program = Path(sys.executable).with_name("chat-gateway")
    helped = median([_took([str(program), "--help"]) for _ in range(TIMES)])
    bare = median([_took([sys.executable, "-c", "pass"]) for _ in range(TIMES)])
    ready = median([_ready() for _ in range(TIMES)])
    with folder() as workspace:
        daemon = Process(workspace, CONFIG, role="all")
        try:
            _, url = daemon.ready()
            empty = daemon.resident_mb()
            asyncio.run(_talk(url))
            resident = daemon.resident_mb()
        finally:
            daemon.end()
    return [
        _row("chat-gateway --help", helped, HELP_S, "s", {"a bare Python takes": f"{bare:.3f} s"}),
        _row("run to ready", ready, READY_S, "s", {"what": "embedded queue, echo, HTTP on"}),
        _row("resident memory", resident, RESIDENT_MB, "MB", {"before the first turn": f"{empty:.1f} MB"}),
    ]


def _row(name: str, ours: float, limit: float, unit: str, notes: dict[str, str]) -> Row:
    return Row(name, ours, limit, unit, "limit", ours / limit, at_most=1, notes=notes)


def _took(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _ready() -> float:
    with folder() as workspace:
        daemon = Process(workspace, CONFIG, role="all")
        try:
            return daemon.ready()[0]
        finally:
            daemon.end()


async def _talk(url: str) -> None:
    """Have 200 turns in 10 chats through HTTP."""

    async def chat(name: int) -> None:
        for number in range(TURNS // 10):
            body = {"chat_id": f"bench{name}", "text": f"message {number}"}
            answer = await client.post(f"{url}/v1/messages?wait=30", json=body)
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {answer.text}")

    async with httpx.AsyncClient(timeout=60) as client:
        await asyncio.gather(*(chat(name) for name in range(10)))
