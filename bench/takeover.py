"""How long 64 running turns stand still when their daemon is killed or frozen, until another has them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack

from bench.place import folder
from bench.row import Row
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.until import until

TURNS = 64
KILLED_S, FROZEN_S = 5.0, 60.0
WITHIN_S = 120.0


def run() -> list[Row]:
    """Start two daemons, let the first one run the turns, and end it in either way."""
    with Broker() as broker:
        killed_s = asyncio.run(_stood_still(broker, "killed"))
        frozen_s = asyncio.run(_stood_still(broker, "frozen"))
    what = "two daemons, 16 partitions, a heartbeat of 10 s; until the model was asked for each of them again"
    return [
        _row(f"takeover of {TURNS} running turns after kill -9", killed_s, KILLED_S, what),
        _row(f"takeover of {TURNS} running turns after SIGSTOP", frozen_s, FROZEN_S, what),
    ]


async def _stood_still(broker: Broker, name: str) -> float:
    with folder() as workspace:
        async with (
            ModelServer() as model,
            Steady(broker.url, name=name) as client,
            AsyncExitStack() as lives,
        ):
            held = asyncio.Event()
            model.chooses = lambda seen: Reply(seen.text, held=held)
            config = with_model(model, **on(broker, name, partitions=16), **{"facts.enabled": False})
            first, second = (Daemon(workspace, role="session", config=config) for _ in range(2))
            await lives.enter_async_context(first)
            for number in range(TURNS):
                await client.put(inbound(f"foreign:c{number}", f"c{number}", f"c{number}"))
            await until(lambda: len(_asked(model)) == TURNS, WITHIN_S)
            await lives.enter_async_context(second)
            # It stands behind the first one in all lines, with its model's library loaded.
            await asyncio.sleep(15)
            began = time.perf_counter()
            first.signal(signal.SIGKILL if name == "killed" else signal.SIGSTOP)
            await until(lambda: min(_asked(model).values()) == 2, WITHIN_S)
            took_s = time.perf_counter() - began
            held.set()
            await client.answered(*(f"c{number}#reply" for number in range(TURNS)))
            await first.kill()
    return took_s


def _asked(model: ModelServer) -> Counter[str]:
    return Counter(seen.text for seen in model.turns)


def _row(name: str, took_s: float, limit_s: float, what: str) -> Row:
    return Row(name, took_s, limit_s, "s", "limit", took_s / limit_s, at_most=1, notes={"what": what})
