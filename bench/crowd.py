"""500 chats write at once and the model takes a second: how much longer than that second it takes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median
from gateway.queue.mailbox import outbound

CHATS, DELAY_S, ROUNDS = 500, 1.0, 3


def run() -> list[Row]:
    """Measure the wall from the first put to the last reply."""
    walls = run_loop(_walls)
    wall = median(walls)
    return [
        Row(
            "500 chats at once, 1 s model",
            wall,
            DELAY_S,
            "s",
            "the model alone",
            wall / DELAY_S,
            at_most=1.3,
            notes={
                "what": "embedded queue, concurrent_turns 500, from the first put to the last reply",
                "samples": {"ours": walls},
            },
        )
    ]


async def _walls() -> list[float]:
    walls = []
    with folder() as workspace:
        config = settings(workspace, model__echo_delay_s=DELAY_S, limits__concurrent_turns=CHATS)
        async with application(config) as here, here.mailbox.take(outbound("bench")) as replies:
            for number in range(ROUNDS):
                posts = [letter(f"bench:{chat}", number, "hello") for chat in range(CHATS)]
                began = time.perf_counter()
                puts = asyncio.gather(*(here.mailbox.put(post) for post in posts))
                taken = await _take(replies, CHATS)
                walls.append(time.perf_counter() - began)
                await puts
                for reply in taken:
                    await here.mailbox.settle(reply)
    return walls


async def _take(replies: Any, count: int) -> list[Any]:
    return [await anext(replies) for _ in range(count)]
