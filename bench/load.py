"""A session of 10,000 messages that nobody has open: how long until a context can be built of it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.place import Instant, folder, one_core, place, transcript
from bench.row import Row, median, times_faster
from session.models.model import Answer, OnDelta, Prompt
from session.transcript.key import SessionKey
from tests.support import peers

MESSAGES, FRESH, TIMES, ROUNDS = 10_000, 60, 5, 6
KEY = SessionKey("cli:long")
Load = Callable[[Path], Coroutine[Any, Any, float]]


def run() -> list[Row]:
    """Measure the load alone, then up to the request that a model gets.

    Both sides stay on one core: ours loads in a thread beside the loop, and on a machine at rest a thread
    that wakes a sleeping core pays for the core. What that adds is told in a row of its own. Each side's
    garbage collector is set as its own program sets it.
    """
    gc.freeze()
    with one_core():
        opened, theirs = _compare(_open, consolidated=MESSAGES - FRESH, history=0)
        asked, theirs_asked = _compare(_ask, consolidated=MESSAGES - FRESH, history=100)
        whole, theirs_whole = _compare(_ask, consolidated=0, history=MESSAGES)
    roaming, theirs_roaming = _compare(_open, consolidated=MESSAGES - FRESH, history=0)
    peer = "nanobot 0.1.4.post3"
    return [
        times_faster(
            "cold load of 10,000, ready to build",
            opened,
            theirs,
            peer,
            what="Store.open of a new Store; theirs: get_or_create of a new SessionManager",
            at_least=3,
        ),
        times_faster(
            "… to the request, memory up to date",
            asked,
            theirs_asked,
            peer,
            what=f"a whole turn up to the model, all but {FRESH} messages consolidated; "
            "theirs: get_or_create and get_history",
            at_least=3,
        ),
        times_faster(
            "… to the request, all 10,000 in it",
            whole,
            theirs_whole,
            peer,
            what="ours repairs every message, theirs copies them; see context for later turns",
            at_least=1,
        ),
        times_faster(
            "cold load of 10,000, any core",
            roaming,
            theirs_roaming,
            peer,
            what="told only: the first row with threads that may wake another core",
        ),
    ]


def _compare(load: Load, *, consolidated: int, history: int) -> tuple[float, float]:
    """Return the median seconds of a load here and there, alternating."""
    ours: list[float] = []
    theirs: list[float] = []
    with folder() as home:
        for number in range(ROUNDS):
            path = transcript(home / f"w{number}", KEY, MESSAGES, consolidated=consolidated)
            for _ in range(TIMES):
                data = path.read_bytes()
                gc.collect()
                ours.append(asyncio.run(load(home / f"w{number}")))
                path.write_bytes(data)
            answer = peers.ask(
                peers.NANOBOT_014,
                home,
                do="load",
                workspace=str(home / f"w{number}"),
                key=KEY,
                times=TIMES,
                history=history,
            )
            theirs += answer["took"]
    return median(ours), median(theirs)


async def _open(workspace: Path) -> float:
    async with place(workspace) as here:
        began = time.perf_counter()
        async with here.store.open(KEY) as session:
            took = time.perf_counter() - began
            assert len(session) == MESSAGES
    return took


class _Stamped(Instant):
    def __init__(self) -> None:
        self.asked_at = 0.0

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.asked_at = time.perf_counter()
        return await super().ask(prompt, on_delta)


async def _ask(workspace: Path) -> float:
    model = _Stamped()
    async with place(workspace, model) as here:
        began = time.perf_counter()
        await here.turn(KEY, "next", "a new message")
    return model.asked_at - began
