"""A request for budget while the disk refuses what was spent before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from session.errors import StoreError
from session.models.caps import Caps
from session.models.model import Need, Payer, Usage
from session.models.spending import Spending
from tests.session.spending_victim import HELD_S, AtOnce
from tests.support.clock import Clock

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
T = TypeVar("T")


class Later(AtOnce):
    """A disk that does a job when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def do() -> None:
            try:
                done.set_result(job())
            except StoreError as error:
                done.set_exception(error)

        self.jobs.append(do)
        return done


@pytest.mark.parametrize("again", [False, True])
async def test_whoever_asks_while_a_visit_fails_is_answered_by_the_next_one(
    tmp_path: Path, again: bool
) -> None:
    """By its refusal where the disk refuses again, and then nobody looks on by himself."""
    disk, in_the_way = Later(), tmp_path / "usage"
    caps = Caps(cost_per_day_usd=1.0)
    mine = Spending(tmp_path / "usage", disk=disk, clock=Clock(NOON), durable=True, caps=caps, held_s=HELD_S)
    in_the_way.write_text("in the way")
    mine.record("cli:bob", "bob", Usage(5, 5, 0.5))
    asking = asyncio.create_task(mine.reserve(Payer("cli:ada", "ada", id="m1"), Need(10, 0.1), Usage()))
    await asyncio.sleep(0)

    disk.jobs.pop()()
    if not again:
        in_the_way.unlink()

    [answer] = await asyncio.wait_for(asyncio.gather(asking, return_exceptions=True), 10)
    assert isinstance(answer, StoreError) if again else answer is None
    assert disk.jobs == []
