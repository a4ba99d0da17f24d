"""What counting turns leaves in memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from session.models.model import Usage
from session.models.spending import Spending
from tests.session.spending_victim import AtOnce
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

TURNS = 10_000


@guarantee("operation", "The memory for usage limits does not grow with the number of turns.")
@pytest.mark.parametrize("turns_per_hour", [0, 100])
def test_whoever_writes_day_and_night_leaves_no_memory_behind(tmp_path: Path, turns_per_hour: int) -> None:
    """Where nobody asks when turns ended nothing is kept of them, else an hour of them, asked or not."""
    clock = Clock()
    spending = Spending(tmp_path, disk=AtOnce(), clock=clock, durable=False, turns_per_hour=turns_per_hour)
    tracemalloc.start()
    try:
        for _ in range(TURNS):
            clock.forward(seconds=30)
            spending.record("a:1", "a:1", Usage(10, 2, 0.5))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(spending.within_hour("a:1")) == (120 if turns_per_hour else 0)
    # A time takes some 56 bytes: those of an hour 7 kB, those of two days 320 kB.
    assert held < 30_000
