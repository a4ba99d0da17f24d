"""One session of 2,000 turns: it does not slow down, and it is several times as fast as nanobot's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from itertools import pairwise

from bench.application import application, kept_up, letter, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median
from gateway.app.application import Application
from gateway.queue.mailbox import outbound
from tests.support import peers

TURNS, PART, TALK = 2_000, 100, 400
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
    talk = run_loop(_one_at_a_time)
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
                "what": "embedded queue, echo, all messages waiting; medians of the time between replies",
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
                "what": "all messages wait, on both sides; ours durable: turn synced, reply stored, letter "
                "removed in one transaction; theirs: bus, loop, stub provider in the process, nothing synced",
                "each put when the reply before it came": f"{talk:.0f} turns/s",
                "samples": {"ours": [TURNS / sum(run) for run in ours]},
            },
        ),
    ]


def _median_of(runs: list[list[float]], part: slice) -> float:
    return median([took for run in runs for took in run[part]])


async def _ours() -> list[float]:
    """Return the seconds from one reply to the next, with all messages waiting in the queue."""
    with folder() as workspace:
        opened = Application(settings(workspace))
        is_open = opened.mailbox.ready

        async def backlog() -> None:
            """Lay the letters into the queue when it is open, before anything takes from it."""
            await is_open()
            posts = [letter(KEY, number, f"message {number}") for number in range(TURNS)]
            await asyncio.gather(*(opened.mailbox.put(post) for post in posts))

        opened.mailbox.ready = backlog  # type: ignore[method-assign]
        came: list[float] = []
        async with kept_up(opened), opened.mailbox.take(outbound("bench")) as replies:
            while len(came) < TURNS:
                if (await anext(replies)).id.endswith("#reply"):
                    came.append(time.perf_counter())
    return [after - before for before, after in pairwise(came)]


async def _one_at_a_time() -> float:
    """Return turns per second where each message is put when the reply before it came."""
    with folder() as workspace:
        async with application(settings(workspace)) as here, here.mailbox.take(outbound("bench")) as replies:
            settled: Awaitable[None] = asyncio.sleep(0)
            began = time.perf_counter()
            for number in range(TALK):
                put = here.mailbox.put(letter(KEY, number, f"message {number}"))
                # The channel's intake and its delivery, side by side.
                await asyncio.gather(put, settled)
                settled = here.mailbox.settle(await anext(replies))
            await settled
            return TALK / (time.perf_counter() - began)
