"""A gateway that ends without a drain: its workers are told to end, and only those that do not are killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from gateway.app.ending import LAST_WORDS_S
from gateway.workers import process
from gateway.workers.process import WorkerProcess
from tests.support.prepared import ROOT
from tests.support.until import until


@pytest.fixture(autouse=True)
def slow_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that take their time to go when they are told to."""
    monkeypatch.setattr(process, "MODULE", "tests.support.slow_to_go")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def test_a_worker_is_told_to_end_and_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its running turns are cancelled by itself, which strikes their starts out."""
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 60.0)
    worker = WorkerProcess(1, changed=lambda: None)
    running = asyncio.create_task(worker.run({}))
    async with asyncio.timeout(60):
        await worker.ready.wait()

        running.cancel()
        await asyncio.wait((running,))

    assert running.cancelled()
    assert worker.ended.is_set()
    assert worker.code == 0


async def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 0.2)
    worker = WorkerProcess(1, changed=lambda: None)
    running = asyncio.create_task(worker.run({}))
    async with asyncio.timeout(60):
        await worker.ready.wait()
        os.kill(worker.pid, signal.SIGSTOP)

        running.cancel()
        await asyncio.wait((running,))

        assert running.cancelled()
        await until(lambda: _killed(worker))


async def test_a_worker_that_has_said_nothing_is_killed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no letter yet, and would be heard of late."""
    monkeypatch.setattr(process, "MODULE", "tests.support.never_speaks")
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 600.0)
    worker = WorkerProcess(1, changed=lambda: None)
    running = asyncio.create_task(worker.run({}))
    async with asyncio.timeout(60):
        await until(lambda: worker.pid)

        running.cancel()
        await asyncio.wait((running,))

        assert running.cancelled()
        await until(lambda: _killed(worker))


def _killed(worker: WorkerProcess) -> bool:
    assert worker._process is not None
    return worker._process.returncode == -signal.SIGKILL


def test_it_has_longer_than_a_worker_takes() -> None:
    """A worker that is told to end at once does so within its last words."""
    assert process.ENDS_WITHIN_S > LAST_WORDS_S
