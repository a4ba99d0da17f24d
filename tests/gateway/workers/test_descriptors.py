"""A gateway that has no descriptor left: it goes on, and its workers come back when it has some again."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.workers import process
from gateway.workers.workers import Workers
from tests.support.prepared import ROOT
from tests.support.until import until


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_worker_that_cannot_be_replaced_for_want_of_descriptors_is_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies while the gateway is at its limit."""
    monkeypatch.setattr(process, "MODULE", "tests.support.slow_to_go")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    workers = Workers(1, {}, silent_s=30)
    running = asyncio.create_task(workers.run())
    async with asyncio.timeout(60):
        await workers.started()
        first = workers.shown()[0]["pid"]

        with no_descriptor_left():
            os.kill(first, signal.SIGKILL)
            await until(lambda: running.done() or "Too many open files" in workers.shown()[0]["error"])
        assert not running.done()

        await until(lambda: workers.any_up)
        assert workers.shown()[0]["pid"] != first
        assert await workers.drain(within_s=30)
        await running
