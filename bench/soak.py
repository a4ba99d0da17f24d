"""A million turns over 10,000 chats: memory, descriptors and ``state/`` stay bounded, every file is legal.

A daemon of role session in a process of its own takes from RabbitMQ; this process writes and reads the
replies, so many letters under way at once. ``SOAK_TURNS`` says how many turns.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

from bench.application import Process, letter
from bench.application import run as run_loop
from bench.backlog import OUT, declare_out, of_ours
from bench.place import TEXT, folder
from bench.row import Row
from tests.support.broker import Broker

TURNS = int(os.environ.get("SOAK_TURNS", "1000000"))
KEYS = min(10_000, TURNS)
UNDER_WAY = 500
SAMPLES = 20
STILL_S = 120
# What is in the caches when they are full belongs to no slope: the first half of the samples is not judged.
JUDGED = SAMPLES // 2


@dataclass
class Sample:
    """What the daemon holds after so many turns."""

    turns: int
    resident_mb: float
    descriptors: int
    state_mb: float


@dataclass
class Soak:
    """The chats that write, and what was seen of the daemon meanwhile."""

    daemon: Process
    workspace: Path
    samples: list[Sample] = field(default_factory=list)
    answered: int = 0
    repeated: int = 0
    out_of_order: int = 0

    async def run(self, url: str) -> None:
        """Write all, each chat again when it was answered; look at the daemon at even steps."""
        turns = iter(range(TURNS))
        waiting: dict[str, asyncio.Event] = {}
        async with await aio_pika.connect(url) as connection:
            consuming, channel = await connection.channel(), await connection.channel(on_return_raises=True)
            await consuming.set_qos(2_000)
            queue = await consuming.get_queue(OUT, ensure=False)
            exchange = await channel.get_exchange(of_ours(letter("bench:0", 0, ""))[0], ensure=False)

            async def reply(message: AbstractIncomingMessage) -> None:
                await message.ack()
                answered = waiting.pop((message.message_id or "").partition("#reply")[0], None)
                if answered is None:
                    self.repeated += 1
                    return
                self.answered += 1
                answered.set()

            await queue.consume(reply)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(UNDER_WAY, KEYS)):
                    group.create_task(self._write(exchange, turns, waiting), name="writer")
                group.create_task(self._look(), name="look")

    async def _write(
        self, exchange: AbstractExchange, turns: object, waiting: dict[str, asyncio.Event]
    ) -> None:
        # Neighbours in time are other chats: a chat's next letter comes KEYS turns later.
        for turn in turns:  # type: ignore[attr-defined]
            post = letter(f"bench:{turn % KEYS}", turn // KEYS, f"{turn} {TEXT}")
            answered = waiting[post.id] = asyncio.Event()
            message = aio_pika.Message(
                post.body, delivery_mode=2, message_id=post.id, headers={"key": post.key}
            )
            await exchange.publish(message, of_ours(post)[1])
            async with asyncio.timeout(STILL_S):
                await answered.wait()

    async def _look(self) -> None:
        for number in range(1, SAMPLES + 1):
            while self.answered < TURNS * number // SAMPLES:
                await asyncio.sleep(0.2)
            sample = await asyncio.to_thread(self._sample)
            self.samples.append(sample)
            print(f"  {sample}", file=sys.stderr, flush=True)

    def _sample(self) -> Sample:
        state = sum(path.stat().st_size for path in (self.workspace / "state").rglob("*") if path.is_file())
        descriptors = len(list(Path(f"/proc/{self.daemon.process.pid}/fd").iterdir()))
        return Sample(self.answered, self.daemon.resident_mb(), descriptors, state / 2**20)


def run() -> list[Row]:
    """Soak one daemon; verify its files afterwards."""
    with Broker() as broker, folder() as workspace:
        url = broker.vhost("soak")
        config = {"broker.url": url, "broker.queue_type": "classic", "log.level": "warning"}
        daemon = Process(workspace, config)
        try:
            daemon.ready()
            run_loop(lambda: declare_out(url))
            soak = Soak(daemon, workspace)
            began = time.monotonic()
            run_loop(lambda: soak.run(url))
            took_s = time.monotonic() - began
        finally:
            daemon.end()
        illegal = _verified(workspace)
    return list(_rows(soak, took_s, illegal))


def _rows(soak: Soak, took_s: float, illegal: str) -> list[Row]:
    judged = soak.samples[-JUDGED - 1 :]
    first, last = judged[0], judged[-1]
    slope = _slope([(each.turns / 100_000, each.resident_mb) for each in judged])
    what = (
        f"{TURNS:,} turns over {KEYS:,} chats, {UNDER_WAY} under way, in {took_s:,.0f} s; judged from turn "
        f"{first.turns:,} on, {first.resident_mb:.1f} MB there and {last.resident_mb:.1f} MB at the end"
    )
    missing = TURNS - soak.answered + soak.repeated
    return [
        Row("memory by 100,000 turns", slope, 1, "MB", "limit", slope, at_most=1, notes={"what": what}),
        Row(
            "descriptors",
            last.descriptors,
            first.descriptors,
            "open",
            "the same at half",
            last.descriptors / first.descriptors,
            at_most=1.1,
        ),
        Row(
            "size of state/",
            last.state_mb,
            first.state_mb,
            "MB",
            "the same at half",
            last.state_mb / first.state_mb,
            at_most=1.1,
        ),
        Row("replies missing or repeated", missing, 0, f"of {TURNS:,}", "limit", missing, at_most=0),
        Row(
            "findings of sessions verify",
            float(bool(illegal)),
            0,
            "files",
            "limit",
            float(bool(illegal)),
            at_most=0,
            notes={"what": illegal[:500]} if illegal else {},
        ),
    ]


def _slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the straight line nearest to the points."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    return above / sum((x - middle_x) ** 2 for x, _ in points)


def _verified(workspace: Path) -> str:
    command = [sys.executable, "-m", "gateway", "--workspace", str(workspace), "sessions", "verify", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    if done.returncode == 0 and found in ("", "[]"):
        return ""
    return found or done.stderr or f"exit {done.returncode}"
