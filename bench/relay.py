"""Turns per second through RabbitMQ beside a bare relay on the same broker, and through the embedded queue.

A backlog of 100 keys is laid into the queues first, then the daemon (or the bare relay) works it off alone:
no third process takes part, so that the two cores belong to the broker and to what is measured. The clock
runs from the moment a fifth of the replies is there to the last reply, for both sides: behind it lie the
start-up, the new files and, with two workers, their first share of the partitions, and what is measured takes
seconds. With two workers ours has one process more than the relay, on the same two cores.
The rounds alternate, and the ratio is the median of the rounds' own ratios: a busy moment hits both sides.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from pathlib import Path
from typing import Any

from bench import bare
from bench.application import Process, application, kept_up, settings
from bench.application import run as run_loop
from bench.backlog import OUT, Backlog, declare_out, of_ours, of_relay, running
from bench.place import folder
from bench.row import Row, rate
from gateway.app.application import Application
from gateway.queue.mailbox import Mailbox, Post, outbound
from tests.support.broker import Broker

KEYS, EACH, ROUNDS = 100, 200, 5
TOTAL = KEYS * EACH
FIRST = TOTAL // 5
BACKLOG = Backlog(KEYS, EACH, FIRST, TOTAL)


def run() -> list[Row]:
    """Alternate the daemon and the bare relay, then run the embedded queue and a profile."""
    ours: list[float] = []
    peer: list[float] = []
    two: list[float] = []
    embedded: list[float] = []
    threads: dict[str, float] = {}
    with Broker() as broker:
        for number in range(ROUNDS):
            peer.append(_bare(broker.url, f"bare{number}"))
            turns_per_s, threads = _daemon(broker.vhost(f"ours{number}"))
            ours.append(turns_per_s)
            two.append(_daemon(broker.vhost(f"two{number}"), workers=2)[0])
            embedded.append(embedded_queue())
        shares = _profiled(broker.vhost("profiled"))
    return [
        rate(
            "turns through RabbitMQ",
            ours,
            peer,
            "bare aio-pika relay",
            at_least=0.5,
            notes={
                "what": f"{KEYS} keys, backlog of {TOTAL}, all durable, role session, echo, "
                "16 classic queues",
                "one letter costs the daemon": _by_thread(threads),
                "of the loop's time": shares,
            },
        ),
        rate(
            "… with two workers",
            two,
            peer,
            "bare aio-pika relay",
            at_least=1.0,
            notes={"what": "the same backlog; gateway, two workers and broker on the machine's cores"},
        ),
        rate(
            "turns, embedded queue",
            embedded,
            ours,
            "ours through RabbitMQ",
            notes={
                "what": f"told only: the same backlog of {TOTAL} letters, worked off in one process. A turn "
                "costs about the same under one interpreter's lock whatever the queue is, and RabbitMQ "
                "does its own part on another core"
            },
        ),
    ]


def _bare(url: str, prefix: str) -> float:
    async def lay() -> None:
        await bare.declare(url, prefix)
        await BACKLOG.lay(url, of_relay(prefix, bare.PARTITIONS))

    run_loop(lay)
    with running([sys.executable, "-m", "bench.bare", url, prefix]):
        return run_loop(lambda: BACKLOG.clocked(url, f"{prefix}.outbound"))


def _config(url: str) -> dict[str, Any]:
    return {"broker.url": url, "broker.queue_type": "classic"}


def _prepare(workspace: Path, url: str) -> None:
    """Let a daemon set the broker up, then lay the backlog while nobody takes it."""
    first = Process(workspace, _config(url))
    try:
        first.ready()
    finally:
        first.end()
    run_loop(lambda: BACKLOG.lay(url, of_ours))
    run_loop(lambda: declare_out(url))


def _daemon(url: str, *, workers: int = 1) -> tuple[float, dict[str, float]]:
    with folder() as workspace:
        _prepare(workspace, url)
        daemon = Process(workspace, {**_config(url), "limits.workers": workers})
        try:
            return run_loop(lambda: BACKLOG.clocked(url, OUT)), daemon.cpu()
        finally:
            daemon.end()


def _by_thread(threads: dict[str, float]) -> str:
    parts = [f"{name} {used / TOTAL * 1e6:.0f} µs" for name, used in threads.items()]
    return "CPU, start-up included: " + ", ".join(parts)


def embedded_queue() -> float:
    """Return the turns per second with the embedded queue."""
    return run_loop(_embedded_once)


async def _embedded_once() -> float:
    with folder() as workspace:
        opened = Application(settings(workspace))
        is_open = opened.mailbox.ready

        async def backlog() -> None:
            """Lay the letters into the queue when it is open, before anything takes from it."""
            await is_open()
            await asyncio.gather(*(_lay(opened.mailbox, line) for line in BACKLOG.posts()))

        opened.mailbox.ready = backlog  # type: ignore[method-assign]
        async with kept_up(opened):
            first = await _until_laid(opened.mailbox, FIRST)
            began = time.perf_counter()
            await _until_laid(opened.mailbox, TOTAL)
            return (TOTAL - first) / (time.perf_counter() - began)


async def _lay(mailbox: Mailbox, line: list[Post]) -> None:
    for post in line:
        await mailbox.put(post)


async def _until_laid(mailbox: Mailbox, count: int) -> int:
    """Wait until that many replies lie in the queue, where nobody takes them; return how many do."""
    while True:
        depth = (await mailbox.depths()).get(outbound("bench"))
        if depth is not None and depth.count >= count:
            return depth.count
        await asyncio.sleep(0.01)


def _profiled(url: str) -> str:
    """Work the same backlog off in this process under cProfile; return where the loop's thread was."""
    profile = cProfile.Profile()

    async def work(workspace: Path) -> None:
        config = settings(workspace, broker__url=url, broker__queue_type="classic")
        async with application(config):
            await BACKLOG.clocked(url, OUT)

    with folder() as workspace:
        _prepare(workspace, url)
        profile.enable()
        run_loop(lambda: work(workspace))
        profile.disable()
    return shares_of(pstats.Stats(profile))


PARTS = (
    ("queue client", ("/gateway/queue/", "/aio_pika/", "/aiormq/", "/pamqp/")),
    ("log", ("/gateway/app/log", "/gateway/config/redact", "/structlog/", "/logging/")),
    ("worker, lanes, answers", ("/gateway/",)),
    ("store", ("/session/store/", "/session/transcript/", "/session/disk/", "/durable/")),
    ("turn", ("/session/",)),
    ("bodies", ("/channels/", "/pydantic")),
    ("asyncio", ("/asyncio/", "/contextlib", "uvloop")),
)


def shares_of(stats: pstats.Stats) -> str:
    """Sum up a profile's own time by part of the product."""
    parts: dict[str, float] = {}
    waiting = ("select", "poll", "run_until_complete", "acquire")
    raw: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, function), (_, _, own, _, _) in raw.items():
        if any(word in function for word in waiting) or file.endswith("/asyncio/runners.py"):
            # The loop's own time in there is mostly that in which it has nothing to do.
            continue
        name = next((name for name, marks in PARTS if any(mark in file for mark in marks)), "built-in calls")
        parts[name] = parts.get(name, 0.0) + own
    whole = sum(parts.values())
    listed = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {own / whole:.0%}" for name, own in listed if own / whole >= 0.01)
