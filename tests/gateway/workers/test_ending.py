"""Workers that end or die: told to end before they are killed, replaced later, counted once."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.application import Application
from gateway.app.daemon import LAST_WORDS_S
from gateway.queue.mailbox import Depth
from gateway.service import gauges
from gateway.workers import process
from gateway.workers import workers as keeping
from gateway.workers.process import WorkerProcess
from gateway.workers.workers import Workers
from session.store.state import workspace_state
from tests.support.prepared import ROOT
from tests.support.until import until

Running = asyncio.Task[None]


@pytest.fixture(autouse=True)
def slow_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that take their time to go when they are told to."""
    monkeypatch.setattr(process, "MODULE", "tests.support.slow_to_go")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def ended(running: Running) -> None:
    running.cancel()
    await asyncio.wait((running,))


@asynccontextmanager
async def at_work(workspace: Path, count: int, *, silent_s: float) -> AsyncIterator[tuple[Workers, Running]]:
    async with workspace_state(workspace / "state").opened() as state, asyncio.timeout(60):
        workers = Workers(count, {}, state, partitions=4, silent_s=silent_s)
        running = asyncio.create_task(workers.run())
        await workers.started()
        yield workers, running
        await ended(running)


@pytest.mark.parametrize("ends_within_s", [60.0, 0.2])
async def test_a_worker_is_told_to_end_has_its_time_and_is_killed_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends_within_s: float
) -> None:
    """Its running turns are cancelled by itself, which strikes their starts out."""
    monkeypatch.setattr(process, "ENDS_WITHIN_S", ends_within_s)
    async with workspace_state(tmp_path / "state").opened() as state, asyncio.timeout(60):
        worker = WorkerProcess({}, state, changed=lambda: None)
        running = asyncio.create_task(worker.run(1, []))
        await worker.ready.wait()
        if ends_within_s < 1:
            os.kill(worker.pid, signal.SIGSTOP)
        await ended(running)

        assert running.cancelled()
        if ends_within_s < 1:
            await until(lambda: _killed(worker))
        else:
            assert (worker.ended.is_set(), worker.code) == (True, 0)


async def test_the_spare_process_becomes_the_next_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the number and the partitions of the one that died; then there is a spare process again."""
    monkeypatch.setattr(keeping, "SPARE_AFTER_S", 0.0)
    started: list[int] = []
    start = WorkerProcess.start

    async def noted(worker: WorkerProcess) -> None:
        await start(worker)
        started.append(worker.pid)

    monkeypatch.setattr(WorkerProcess, "start", noted)
    async with at_work(tmp_path, 2, silent_s=600) as (workers, _):
        await until(lambda: len(started) == 3)
        first, other = workers.shown()
        os.kill(first["pid"], signal.SIGKILL)
        await until(lambda: workers.shown()[0]["pid"] == started[2] and workers.any_up)
        await until(lambda: workers.shown()[0]["up"])
        await until(lambda: len(started) == 4)

        replaced = workers.shown()
    assert replaced[1] == other
    assert (replaced[0]["number"], replaced[0]["partitions"]) == (1, [0, 2])
    assert first["partitions"] == [0, 2]
    assert other["partitions"] == [1, 3]


async def test_a_worker_that_has_said_nothing_is_killed_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no letter yet, and would be heard of late."""
    monkeypatch.setattr(process, "MODULE", "tests.support.never_speaks")
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 600.0)
    async with workspace_state(tmp_path / "state").opened() as state, asyncio.timeout(60):
        worker = WorkerProcess({}, state, changed=lambda: None)
        running = asyncio.create_task(worker.run(1, []))
        await until(lambda: worker.pid)
        await ended(running)

        assert running.cancelled()
        await until(lambda: _killed(worker))


def _killed(worker: WorkerProcess) -> bool:
    assert worker._process is not None
    return worker._process.returncode == -signal.SIGKILL


def test_it_has_longer_than_a_worker_takes() -> None:
    """A worker that is told to end at once does so within its last words."""
    assert process.ENDS_WITHIN_S > LAST_WORDS_S


async def test_a_worker_that_is_slow_to_go_has_ended_its_turns(tmp_path: Path) -> None:
    """An interpreter that ends says nothing for a while on a busy machine: that is no standing still."""
    async with at_work(tmp_path, 2, silent_s=0.5) as (workers, running):
        assert await workers.drain(within_s=30)
        await running

    assert [worker["restarts"] for worker in workers.shown()] == [0, 0]


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


async def test_a_worker_that_cannot_be_replaced_for_want_of_descriptors_is_later(tmp_path: Path) -> None:
    """It dies while the gateway is at its limit."""
    async with at_work(tmp_path, 1, silent_s=30) as (workers, running):
        first = workers.shown()[0]["pid"]
        with no_descriptor_left():
            os.kill(first, signal.SIGKILL)
            await until(lambda: running.done() or "Too many open files" in workers.shown()[0]["error"])
        assert not running.done()

        await until(lambda: workers.any_up)
        assert workers.shown()[0]["pid"] != first
        assert await workers.drain(within_s=30)
        await running


async def scraped(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> float:
    """Read the count of a gateway that has nothing but these workers."""
    monkeypatch.setattr(gauges, "readiness_of", lambda _: (True, {}))
    found = SimpleNamespace(
        workers=workers,
        services=None,
        role="all",
        mailbox=SimpleNamespace(in_memory=lambda: SimpleNamespace(letters=0, bytes=0)),
        worker=None,
        metrics=None,
    )
    text = (await gauges.metrics(cast("Application", found))).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return next(sample.value for sample in samples if sample.name == "chat_gateway_x_total")


async def test_a_worker_that_dies_while_the_queues_are_counted_counts_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has answered, then goes to the past; the next scrape has its successor's numbers on top of it.

    Each has counted 1000, then 10 more at each question.
    """
    monkeypatch.setattr(process, "MODULE", "tests.support.counting")
    dies = False

    async def depths(*_: Any) -> dict[str, Depth]:
        if dies:
            os.kill(workers.shown()[0]["pid"], signal.SIGKILL)
            await until(lambda: workers.shown()[0]["error"])
        return {}

    monkeypatch.setattr(gauges, "_depths", depths)
    async with at_work(tmp_path, 1, silent_s=600) as (workers, _):
        before = await scraped(workers, monkeypatch)
        dies = True
        beside = await scraped(workers, monkeypatch)
        dies = False
        await until(lambda: workers.any_up)
        behind = await scraped(workers, monkeypatch)

    assert (before, beside, behind) == (1000, 1010, 2010)
