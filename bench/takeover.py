"""How long 64 running turns stand still when their worker is killed or frozen, until they run again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

from bench.place import folder
from bench.row import Row
from gateway.queue.rabbitmq.topology import partition_of
from session.transcript.key import slot_of
from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.gateway_team import workers
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.until import until

TURNS, PARTITIONS = 64, 64
KILLED_S, FROZEN_S = 1.0, 5.0
TIMEOUT_S = 3.0
WITHIN_S = 120.0


def run() -> list[Row]:
    """Let one of two workers run the turns, and end it in either way."""
    with Broker() as broker:
        killed_s = asyncio.run(_stood_still(broker, "killed"))
        frozen_s = asyncio.run(_stood_still(broker, "frozen"))
    what = f"one of two workers, {PARTITIONS} partitions; until the model was asked for each of them again"
    frozen = f"{what}; limits.worker_timeout_s = {TIMEOUT_S:g}"
    return [
        _row(f"takeover of {TURNS} running turns after kill -9", killed_s, KILLED_S, what),
        _row(f"takeover of {TURNS} running turns after SIGSTOP", frozen_s, FROZEN_S, frozen),
    ]


async def _stood_still(broker: Broker, name: str) -> float:
    with folder() as workspace:
        async with ModelServer() as model, Steady(broker.url, name=name) as client:
            held = asyncio.Event()
            model.chooses = lambda seen: Reply(seen.text, held=held)
            more = {"limits.workers": 2, "limits.worker_timeout_s": TIMEOUT_S, "facts.enabled": False}
            config = with_model(model, **on(broker, name, partitions=PARTITIONS), **more)
            async with Daemon(workspace, role="session", config=config) as daemon:
                first = (await workers(daemon))[0]
                chats = [f"c{number}" for number in range(1000) if _has(first["partitions"], f"c{number}")]
                for chat in chats[:TURNS]:
                    await client.put(inbound(f"foreign:{chat}", chat, chat))
                await until(lambda: len(_asked(model)) == TURNS, WITHIN_S)
                # What is prepared for a death is.
                await asyncio.sleep(15)
                began = time.perf_counter()
                os.kill(first["pid"], signal.SIGKILL if name == "killed" else signal.SIGSTOP)
                await until(lambda: min(_asked(model).values()) == 2, WITHIN_S)
                took_s = time.perf_counter() - began
                held.set()
                await client.answered(*(f"{chat}#reply" for chat in chats[:TURNS]))
    return took_s


def _has(partitions: list[int], chat: str) -> bool:
    return partition_of(slot_of(f"foreign:{chat}"), PARTITIONS) in partitions


def _asked(model: ModelServer) -> Counter[str]:
    return Counter(seen.text for seen in model.turns)


def _row(name: str, took_s: float, limit_s: float, what: str) -> Row:
    return Row(name, took_s, limit_s, "s", "limit", took_s / limit_s, at_most=1, notes={"what": what})
