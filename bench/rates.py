"""Turns per second by number of chats, with ``echo`` and through LiteLLM, beside four peers in the same run.

The peers: a bare aio-pika relay and the same written with FastStream, both as durable as ours on the queue
but without transcripts; nanobot 0.1.4.post3 and 0.3.5, whole, with transcripts that are not synced and a
queue in memory. Ours and the relays work off a backlog in RabbitMQ; of nanobot's chats each writes again once
it is answered, since 0.3.5 answers together what waits in a chat.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import bare
from bench.application import Process
from bench.application import run as run_loop
from bench.backlog import OUT, Backlog, declare_out, of_ours, of_relay, running
from bench.place import TEXT, folder
from bench.row import Row, median
from tests.support import peers
from tests.support.broker import Broker
from tests.support.lean_model import lean_model_process

# Of 10,000 chats each writes twice, so that what counts is not what makes their files.
ECHO = {
    1: Backlog(1, 2_000, 200, 2_000),
    100: Backlog(100, 60, 600, 6_000),
    10_000: Backlog(10_000, 2, 10_000, 20_000),
}
LITELLM = {1: Backlog(1, 60, 10, 60), 100: Backlog(100, 6, 100, 600), 10_000: Backlog(10_000, 1, 100, 900)}
# What a nanobot may take for its turns: it writes the whole transcript each time.
NANOBOT_TURNS = {"echo": 300, "LiteLLM": 100}
NANOBOTS = {"nanobot 0.1.4.post3": peers.NANOBOT_014_LOOP, "nanobot 0.3.5": peers.NANOBOT_035_LOOP}
ROUNDS = 3
WORKERS = (1, 2)
MODEL = "openai/stub"


def run() -> list[Row]:
    """All of it: the relays and ours alternate; the nanobots follow."""
    rows: list[Row] = []
    with Broker() as broker:
        rows += [row for keys, backlog in ECHO.items() for row in _echo(broker, keys, backlog)]
        rows += run_loop(lambda: _litellm(broker))
    return rows


def _echo(broker: Broker, keys: int, backlog: Backlog) -> list[Row]:
    rates: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        _progress(f"echo, {_chats(keys)}, round {number + 1} of {ROUNDS}")
        name = f"e{keys}r{number}"
        for peer, command in relays().items():
            url = broker.vhost(f"{name}{len(command)}")
            rates.setdefault(peer, []).append(_relay(url, command, backlog))
        for workers in WORKERS:
            url = broker.vhost(f"{name}w{workers}")
            rates.setdefault(_ours(workers), []).append(daemon_rate(url, backlog, workers=workers))
    for peer, each in NANOBOTS.items():
        _progress(f"echo, {_chats(keys)}, {peer}")
        rates[peer] = [_nanobot(each, keys, NANOBOT_TURNS["echo"])]
    return list(_rows(f"echo, {_chats(keys)}", rates, ("bare aio-pika relay", "FastStream relay", *NANOBOTS)))


async def _litellm(broker: Broker) -> list[Row]:
    rows: list[Row] = []
    async with lean_model_process() as (model, _):
        for keys, backlog in LITELLM.items():
            rates = await asyncio.to_thread(_through, broker, keys, backlog, model)
            rows += _rows(f"LiteLLM, {_chats(keys)}", rates, tuple(NANOBOTS))
    return rows


def _through(broker: Broker, keys: int, backlog: Backlog, model: str) -> dict[str, list[float]]:
    config = {"model.name": MODEL, "model.api_base": model, "model.api_key": "none", "memory.window": 100_000}
    rates: dict[str, list[float]] = {}
    for workers in WORKERS:
        _progress(f"LiteLLM, {_chats(keys)}, {_ours(workers)}")
        url = broker.vhost(f"l{keys}w{workers}")
        rates[_ours(workers)] = [daemon_rate(url, backlog, workers=workers, config=config)]
    for peer, each in NANOBOTS.items():
        _progress(f"LiteLLM, {_chats(keys)}, {peer}")
        rates[peer] = [_nanobot(each, keys, NANOBOT_TURNS["LiteLLM"], api_base=model)]
    return rates


def _rows(what: str, rates: dict[str, list[float]], against: tuple[str, ...]) -> Iterator[Row]:
    for workers in WORKERS:
        ours = rates[_ours(workers)]
        for peer in against:
            theirs = rates[peer]
            each = [mine / median(theirs) for mine in ours]
            if len(ours) == len(theirs):
                each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            yield Row(
                f"{what}, {_ours(workers)}",
                median(ours),
                median(theirs),
                "turns/s",
                peer,
                median(each),
                notes={"samples": {"ours": ours, "peer": theirs}},
            )


def _progress(what: str) -> None:
    print(f"rates: {what} …", file=sys.stderr, flush=True)


def _ours(workers: int) -> str:
    return f"{workers} worker" + "s" * (workers > 1)


def _chats(keys: int) -> str:
    return f"{keys:,} chat" + "s" * (keys > 1)


def relays() -> dict[str, list[str]]:
    """The commands of the relays, by name; each takes the broker's URL and a prefix."""
    fast = Path(__file__).with_name("faststream_relay.py")
    return {
        "bare aio-pika relay": [sys.executable, "-m", "bench.bare"],
        "FastStream relay": [str(peers.python(peers.FASTSTREAM)), str(fast)],
    }


def _relay(url: str, command: list[str], backlog: Backlog) -> float:
    async def lay() -> None:
        await bare.declare(url, "relay")
        await backlog.lay(url, of_relay("relay", bare.PARTITIONS))

    run_loop(lay)
    with running([*command, url, "relay"]):
        return run_loop(lambda: backlog.clocked(url, "relay.outbound"))


def daemon_rate(url: str, backlog: Backlog, *, workers: int, config: dict[str, Any] | None = None) -> float:
    """Let a daemon set the broker up, lay the backlog, and return the replies a second of who takes it."""
    settings = {"broker.url": url, "broker.queue_type": "classic", **(config or {})}
    with folder() as workspace:
        first = Process(workspace, settings)
        try:
            first.ready()
        finally:
            first.end()
        run_loop(lambda: backlog.lay(url, of_ours))
        run_loop(lambda: declare_out(url))
        daemon = Process(workspace, settings, workers=workers)
        try:
            return run_loop(lambda: backlog.clocked(url, OUT))
        finally:
            daemon.end()


def _nanobot(peer: peers.Peer, keys: int, turns: int, *, api_base: str | None = None) -> float:
    with folder() as home:
        words: dict[str, Any] = {
            "workspace": str(home / "work"),
            "turns": turns,
            "chats": keys,
            "size": len(TEXT),
            "in_turn": True,
        }
        if api_base is not None:
            words["api_base"] = api_base
        took = peers.ask(peer, home, timeout_s=900, do="loop", **words)["took"][turns // 10 :]
    return len(took) / float(sum(took))
