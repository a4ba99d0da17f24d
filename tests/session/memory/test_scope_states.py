"""The states of scopes: one writer at a time has one, and nothing stays of those that nobody works on."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from session.memory.scope_state import ScopeStates

MANY = 20


def locks() -> int:
    return sum(type(each) is asyncio.Lock for each in gc.get_objects())


async def test_nothing_stays_in_memory_of_scopes_that_nobody_works_on(tmp_path: Path) -> None:
    """A gateway that runs for months meets each chat that there ever was."""
    states = ScopeStates(tmp_path)
    gc.collect()
    before = locks()

    for number in range(MANY):
        async with states.open(f"chats/{number}"):
            assert locks() == before + 1

    assert locks() == before


async def test_whoever_waits_for_a_scope_comes_in_alone(tmp_path: Path) -> None:
    """Also who asks at the moment in which the first one leaves, and the second has not come in yet."""
    states = ScopeStates(tmp_path)
    inside, most, came = 0, 0, 0

    async def work() -> None:
        nonlocal inside, most, came
        async with states.open("ada"):
            inside, came = inside + 1, came + 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        async with states.open("ada"):
            waiting = group.create_task(work())
            await asyncio.sleep(0)
            assert not waiting.done()
        group.create_task(work())
        group.create_task(work())

    assert (most, came) == (1, 3)
