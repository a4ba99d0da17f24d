"""How often a whole gateway asks a model that limits its rate, and when."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.place import with_model

CHATS = 20


class Limited:
    """Lets one request through per second, as many providers do."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str, bool]] = []
        self._passed_at = 0.0

    def __call__(self, seen: Seen) -> Reply | None:
        now = time.monotonic()
        passes = now - self._passed_at >= 1
        self.asked.append((now, seen.text, passes))
        if passes:
            self._passed_at = now
            return None
        return Reply(status=429, headers={"retry-after": "1"})


async def test_chats_that_a_rate_limit_holds_are_answered_at_its_pace(tmp_path: Path) -> None:
    """Few requests are refused, and none is made before its Retry-After."""
    limited = Limited()
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        model.chooses = limited
        answers = await asyncio.gather(*(ask(daemon, f"cli:c{n}", f"m{n}", f"q{n}") for n in range(CHATS)))

    assert [answer and answer["reply"] for answer in answers] == [f"stub: q{n}" for n in range(CHATS)]
    assert len(limited.asked) <= 60
    for n in range(CHATS):
        times = [(at, passed) for at, text, passed in limited.asked if text == f"q{n}"]
        assert [passed for _, passed in times] == [False] * (len(times) - 1) + [True]
        assert all(later - at >= 1 for (at, _), (later, _) in pairwise(times))
