"""One session of 2,000 turns: it does not slow down, and it is several times as fast as nanobot's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from bench.house import house, letter, settings
from bench.place import folder
from bench.row import Row, median
from gateway.daemon import House
from gateway.mailbox import outbound
from tests import peers

TURNS, PART = 2_000, 100
KEY = "bench:ada"


def run() -> list[Row]:
    """Run ours and theirs alternately, 2,000 turns each."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(2):
        ours.append(asyncio.run(_ours()))
        with folder() as home:
            answer = peers.ask(
                *(peers.NANOBOT_014_LOOP, home), timeout_s=300, do="loop", workspace=str(home), turns=TURNS
            )
            theirs.append(answer["took"])
    first = median([took for run in ours for took in run[:PART]])
    last = median([took for run in ours for took in run[-PART:]])
    rate = median([TURNS / sum(run) for run in ours])
    their_rate = median([TURNS / sum(run) for run in theirs])
    ends = [median([took for run in theirs for took in part]) for part in _ends(theirs)]
    return [
        Row(
            "last 100 of 2,000 turns",
            last * 1e3,
            first * 1e3,
            "ms a turn",
            "the first 100",
            last / first,
            at_most=1.2,
            notes={
                "what": "embedded queue, echo; each message put when the answer before it was taken; medians",
                "theirs": f"{ends[1] * 1e3:.1f} ms against {ends[0] * 1e3:.1f} ms",
            },
        ),
        Row(
            "2,000 turns of one session",
            rate,
            their_rate,
            "turns/s",
            "nanobot 0.1.4.post3 loop",
            rate / their_rate,
            at_least=5,
            notes={
                "what": "put, turn, reply taken and settled, all durable; theirs: bus, loop, "
                "stub provider in the process, nothing synced",
                "samples": {"ours": [TURNS / sum(run) for run in ours]},
            },
        ),
    ]


def _ends(runs: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    return [run[:PART] for run in runs], [run[-PART:] for run in runs]


@asynccontextmanager
async def _replies(open_house: House) -> AsyncIterator[AsyncIterator[object]]:
    async with open_house.mailbox.take(outbound("bench")) as letters:
        yield letters


async def _ours() -> list[float]:
    took = []
    with folder() as workspace:
        async with house(settings(workspace)) as here:
            async with here.mailbox.take(outbound("bench")) as replies:
                for number in range(TURNS):
                    began = time.perf_counter()
                    await here.mailbox.put(letter(KEY, number, f"message {number}"))
                    reply = await anext(replies)
                    await here.mailbox.settle(reply)
                    took.append(time.perf_counter() - began)
    return took
