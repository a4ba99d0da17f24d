"""20 chats write at once and the model lets one request through per second: how long all of them take."""

from __future__ import annotations

import asyncio
import os
import time

from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row
from gateway.queue.mailbox import outbound
from tests.support.model_server import ModelServer
from tests.support.rate_limit import RETRY_AFTER_S, RateLimit

CHATS, REQUESTS_MAX = 20, 60
# The first request passes at once.
IDEAL_S = (CHATS - 1) * RETRY_AFTER_S


def run() -> list[Row]:
    """Measure the wall from the first put to the last reply, and count the requests."""
    os.environ.setdefault("OPENAI_API_KEY", "none")
    wall, requests = run_loop(_measured)
    what = (
        f"{CHATS} chats, one message each; 429 with Retry-After 1 s within a second of the last that passed"
    )
    return [
        Row(
            "20 chats at one request a second",
            wall,
            IDEAL_S,
            "s",
            "the ideal pace",
            wall / IDEAL_S,
            at_most=1.5,
            notes={"what": what},
        ),
        Row(
            "… requests made for them",
            requests,
            REQUESTS_MAX,
            "requests",
            "limit",
            requests / REQUESTS_MAX,
            at_most=1,
        ),
    ]


async def _measured() -> tuple[float, int]:
    """Return the seconds until the last reply, and how many requests it took."""
    limit = RateLimit()
    with folder() as workspace:
        async with ModelServer() as model:
            config = settings(workspace, model__name="openai/stub", model__api_base=model.url)
            async with application(config) as here, here.mailbox.take(outbound("bench")) as replies:
                # What the first turn imports is no part of the pace.
                await here.mailbox.put(letter("bench:first", 0, "hello"))
                await here.mailbox.settle(await anext(replies))
                model.chooses = limit
                began = time.perf_counter()
                for chat in range(CHATS):
                    await here.mailbox.put(letter(f"bench:{chat}", 0, f"message {chat}"))
                answered: set[str] = set()
                async with asyncio.timeout(10 * IDEAL_S):
                    # A chat that waits is told so by a notice.
                    while len(answered) < CHATS:
                        reply = await anext(replies)
                        if reply.id.endswith("#reply"):
                            answered.add(reply.id)
                        await here.mailbox.settle(reply)
                return time.perf_counter() - began, len(limit.asked)
