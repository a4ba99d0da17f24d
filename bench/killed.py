"""kill -9 in the midst of a backlog: how many accepted messages nobody answers after the next start."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aio_pika

from bench import bare
from bench.application import Process
from bench.application import run as run_loop
from bench.backlog import OUT, Backlog, declare_out, of_ours, of_relay
from bench.place import folder
from bench.rates import relays
from bench.row import Row
from tests.support import peers
from tests.support.broker import Broker
from tests.support.harness import ROOT

KEYS, EACH = 50, 40
TOTAL = KEYS * EACH
BACKLOG = Backlog(KEYS, EACH, 1, TOTAL)
# It is killed when so many are answered.
AT = TOTAL // 4
REST_S = 60
# Some replies come twice, so that as many as there are messages are not yet one for each.
SETTLE_S = 3.0


def run() -> list[Row]:
    """Kill ours and each peer once and start it again; count what is missing and what came twice."""
    with Broker() as broker:
        lost = {"ours": _ours(broker)}
        for number, (peer, command) in enumerate(relays().items()):
            lost[peer] = _relay(broker.vhost(f"k{number}"), command)
    lost["nanobot 0.1.4.post3"] = _nanobot(peers.NANOBOT_014_LOOP)
    lost["nanobot 0.3.5"] = _nanobot(peers.NANOBOT_035_LOOP)
    ours, again = lost.pop("ours")
    return [
        Row(
            "messages lost by kill -9",
            ours,
            theirs,
            f"of {TOTAL:,}",
            peer,
            float(ours),
            at_most=0,
            notes={"what": f"delivered again: ours {again}, {peer} {theirs_again}"},
        )
        for peer, (theirs, theirs_again) in lost.items()
    ]


def _ours(broker: Broker) -> tuple[int, int]:
    url = broker.vhost("killed")
    config = {"broker.url": url, "broker.queue_type": "classic"}
    with folder() as workspace:
        first = Process(workspace, config)
        first.ready()
        first.end()
        run_loop(lambda: BACKLOG.lay(url, of_ours))
        run_loop(lambda: declare_out(url))

        def start() -> subprocess.Popen[Any]:
            return Process(workspace, config).process

        return _counted(url, OUT, start)


def _relay(url: str, command: list[str]) -> tuple[int, int]:
    async def lay() -> None:
        await bare.declare(url, "relay")
        await BACKLOG.lay(url, of_relay("relay", bare.PARTITIONS))

    run_loop(lay)
    return _counted(url, "relay.outbound", lambda: subprocess.Popen([*command, url, "relay"], cwd=ROOT))


def _counted(url: str, queue: str, start: Callable[[], subprocess.Popen[Any]]) -> tuple[int, int]:
    """Kill it at ``AT`` replies, start it again, wait for the rest; return how many are lost and repeated."""
    process = start()
    try:
        run_loop(lambda: _until(url, queue, AT))
        _still_alive(process)
    finally:
        process.kill()
        process.wait()
    process = start()
    try:
        run_loop(lambda: _until(url, queue, TOTAL, settle_s=SETTLE_S))
    finally:
        process.terminate()
        process.wait(60)
    replies = run_loop(lambda: _replies(url, queue))
    return TOTAL - len(replies), sum(replies.values()) - len(replies)


async def _until(url: str, queue: str, count: int, *, settle_s: float = 0.0) -> None:
    """Wait until so many replies lie there and no more came for ``settle_s``, or none come at all."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        moved, before = time.monotonic(), -1
        while True:
            there = (await channel.declare_queue(queue, passive=True)).declaration_result.message_count or 0
            if there != before:
                moved, before = time.monotonic(), there
            if time.monotonic() - moved >= (settle_s if there >= count else REST_S):
                return
            await asyncio.sleep(0.01)


async def _replies(url: str, queue: str) -> Counter[str]:
    """Take all replies out; count them by id."""
    found: Counter[str] = Counter()
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        while (message := await declared.get(no_ack=True, fail=False)) is not None:
            found[message.message_id or ""] += 1
    return found


def _nanobot(peer: peers.Peer) -> tuple[int, int]:
    """Kill it when ``AT`` of its answers are out; its bus is memory, so that a start finds no others."""
    with folder() as home:
        reached = home / "reached"
        reached.touch()
        request = {
            "do": "loop",
            "workspace": str(home / "work"),
            "turns": TOTAL,
            "chats": KEYS,
            "reached": str(reached),
        }
        process = peers.start(peer, home)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
            while _lines(reached) < AT and process.poll() is None:
                time.sleep(0.01)
            _still_alive(process)
        finally:
            process.kill()
            process.wait()
        answered = _lines(reached)
        # What the next start knows of: the messages that its files hold, each with its answer.
        stored = sum(_answers(path) for path in home.rglob("*.jsonl"))
        return TOTAL - max(answered, stored), 0


def _still_alive(process: subprocess.Popen[Any]) -> None:
    """What it loses by an end of its own is no figure of a kill."""
    if (code := process.poll()) is not None:
        raise RuntimeError(f"it ended by itself before it was killed, with exit code {code}")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _answers(path: Path) -> int:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return sum(1 for row in rows if row.get("role") == "assistant")
