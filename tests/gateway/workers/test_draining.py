"""Workers that are told to end: who has ended its turns may take its time to go."""

from __future__ import annotations

import asyncio

import pytest

from gateway.workers import process
from gateway.workers.workers import Workers
from tests.support.prepared import ROOT


async def test_a_worker_that_is_slow_to_go_has_ended_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends says nothing for a while on a busy machine: that is no standing still."""
    monkeypatch.setattr(process, "MODULE", "tests.support.slow_to_go")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    workers = Workers(2, {}, silent_s=0.5)
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(60):
        await workers.started()

        ended = await workers.drain(within_s=30)

        await running
    assert ended
    assert [worker["restarts"] for worker in workers.shown()] == [0, 0]
