"""One session of 2,000 turns: it does not slow down, and it is several times as fast as nanobot's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

from bench.house import house, letter, settings
from bench.house import run as run_loop
from bench.place import folder
from bench.row import Row, median
from gateway.mailbox import outbound
from tests import peers

TURNS, PART = 2_000, 100
KEY = "bench:ada"


def run() -> list[Row]:
    """Run ours and theirs alternately, 2,000 turns each."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(2):
        ours.append(run_loop(_ours))
        with folder() as home:
            answer = peers.ask(
                peers.NANOBOT_014_LOOP, home, timeout_s=300, do="loop", workspace=str(home), turns=TURNS
            )
            theirs.append(answer["took"])
    first = _median_of(ours, slice(PART))
    last = _median_of(ours, slice(-PART, None))
    rate = median([TURNS / sum(run) for run in ours])
    their_rate = median([TURNS / sum(run) for run in theirs])
    ends = (_median_of(theirs, slice(PART)), _median_of(theirs, slice(-PART, None)))
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
                "what": "embedded queue, echo; each message put when the answer before it came; medians",
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


def _median_of(runs: list[list[float]], part: slice) -> float:
    return median([took for run in runs for took in run[part]])


async def _ours() -> list[float]:
    """Return the seconds from one reply to the next; each message is put when the reply before it came."""
    took = []
    with folder() as workspace:
        async with house(settings(workspace)) as here, here.mailbox.take(outbound("bench")) as replies:
            settled: Awaitable[None] = asyncio.sleep(0)
            for number in range(TURNS):
                began = time.perf_counter()
                put = here.mailbox.put(letter(KEY, number, f"message {number}"))
                await asyncio.gather(put, settled)  # the channel's intake and its delivery, side by side
                settled = here.mailbox.settle(await anext(replies))
                took.append(time.perf_counter() - began)
            await settled
    return took
