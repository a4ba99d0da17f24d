"""What a worker counted, where it dies beside a scrape."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app.app import Application
from gateway.queue.mailbox import Depth
from gateway.service import gauges
from gateway.workers import process
from gateway.workers.workers import Workers
from tests.support.prepared import ROOT
from tests.support.until import until


def with_workers(workers: Workers) -> Application:
    """A gateway that has nothing but them."""
    in_memory = SimpleNamespace(letters=0, bytes=0)
    found = SimpleNamespace(
        workers=workers,
        services=None,
        role="all",
        readiness=lambda: (True, {}),
        mailbox=SimpleNamespace(in_memory=lambda: in_memory),
        worker=None,
        metrics=None,
    )
    return cast(Application, found)


def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Workers, asyncio.Task[None]]:
    """Start one worker, which has counted 1000, then 10 more at each question."""
    monkeypatch.setattr(process, "MODULE", "tests.support.counting")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    workers = Workers(1, {}, silent_s=600)
    return workers, asyncio.create_task(workers.run())


async def scraped(workers: Workers) -> float:
    text = (await gauges.metrics(with_workers(workers))).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return next(sample.value for sample in samples if sample.name == "chat_gateway_x_total")


async def test_a_worker_that_dies_while_the_queues_are_counted_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has answered, then goes to the past; the next scrape has its successor's numbers on top of it."""
    workers, running = begun(monkeypatch)
    dies = False

    async def depths(*_: Any) -> dict[str, Depth]:
        if dies:
            os.kill(workers.shown()[0]["pid"], signal.SIGKILL)
            await until(lambda: workers.shown()[0]["error"])
        return {}

    monkeypatch.setattr(gauges, "_depths", depths)
    async with asyncio.timeout(60):
        await workers.started()
        before = await scraped(workers)
        dies = True
        beside = await scraped(workers)
        dies = False
        await until(lambda: workers.any_up)
        behind = await scraped(workers)
        running.cancel()
        await asyncio.wait((running,))

    assert (before, beside, behind) == (1000, 1010, 2010)


async def test_what_has_ended_by_the_time_that_its_answer_is_read_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its numbers of the scrape before have gone to the past."""
    workers, running = begun(monkeypatch)
    ask = process.WorkerProcess.ask

    async def late(self: process.WorkerProcess, what: str, **arguments: Any) -> Any:
        found = await ask(self, what, **arguments)
        self.kill()
        await until(lambda: workers.shown()[0]["error"])
        return found

    async with asyncio.timeout(60):
        await workers.started()
        assert await workers.count() == [0]
        monkeypatch.setattr(process.WorkerProcess, "ask", late)
        await workers.count()
        running.cancel()
        await asyncio.wait((running,))

    assert not workers.counted
    assert [sample[2] for family in workers.past for sample in family[3]] == [1000]
