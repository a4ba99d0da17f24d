"""10,000 cron jobs: what they cost while none is due, and how late their letters are durable."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.application import run as run_loop
from bench.application import settings
from bench.place import folder
from bench.row import Row, quantile
from channels.base import Pulse
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import ms_of
from channels.cron.scheduler import CronScheduler
from channels.message import Inbound
from gateway.app import logging as logs
from gateway.inbound.pipeline import Intake
from gateway.queue.embedded.mailbox import EmbeddedMailbox

JOBS = 10_000
IDLE_S, SPREAD_S = 20.0, 20
CORE_SHARE, LATE_S = 0.01, 1.0
EXPRESSIONS = ("0 9 * * 1-5", "30 2 1 * *", "0 0 * * 0", "15 12 24 12 *")


def run() -> list[Row]:
    """Measure jobs that wait, jobs that are due one after the other, and jobs that are all due at once."""
    idle, start = run_loop(_idle)
    spread = run_loop(lambda: _fire(spread_s=SPREAD_S))
    burst = run_loop(lambda: _fire(spread_s=0))
    return [
        Row(
            "10,000 cron jobs, none due",
            idle * 100,
            CORE_SHARE * 100,
            "% of a core",
            "limit",
            idle / CORE_SHARE,
            at_most=1,
            notes={"over": f"{IDLE_S:g} s", "start, processor time": f"{start:.2f} s"},
        ),
        _late("10,000 cron jobs over 20 s, latest letter", spread, at_most=1),
        _late("10,000 cron jobs at one instant, latest letter", burst),
    ]


def _late(name: str, late: list[float], at_most: float | None = None) -> Row:
    notes = {
        "p50": f"{quantile(late, 0.5):.3f} s",
        "p99": f"{quantile(late, 0.99):.3f} s",
        "what": "from the slot to the letter's commit in the embedded queue",
    }
    return Row(name, max(late), LATE_S, "s", "limit", max(late) / LATE_S, at_most=at_most, notes=notes)


async def _idle() -> tuple[float, float]:
    with folder() as workspace:
        _write(
            workspace,
            [_row(n, {"kind": "cron", "expr": EXPRESSIONS[n % 4], "tz": "UTC"}) for n in range(JOBS)],
        )
        began = time.process_time()
        late: list[float] = []
        async with _clock(workspace, late):
            await _noted(workspace)
            await asyncio.sleep(2)
            start, from_ = time.process_time() - began, time.perf_counter()
            before = time.process_time()
            await asyncio.sleep(IDLE_S)
            used = time.process_time() - before
            return used / (time.perf_counter() - from_), start


async def _fire(*, spread_s: int) -> list[float]:
    """Return how late the letter of each job was durable."""
    with folder() as workspace:
        first = datetime.now(UTC) + timedelta(seconds=15)
        step = timedelta(seconds=spread_s) / JOBS
        _write(workspace, [_row(n, {"kind": "at", "atMs": ms_of(first + n * step)}) for n in range(JOBS)])
        late: list[float] = []
        async with _clock(workspace, late):
            while len(late) < JOBS:
                await asyncio.sleep(0.5)
        return late


@asynccontextmanager
async def _clock(workspace: Path, late: list[float]) -> AsyncIterator[None]:
    """Run the clock over an embedded queue."""
    mailbox = EmbeddedMailbox(workspace / "state")
    intake = Intake(mailbox)

    async def put(inbound: Inbound) -> None:
        await intake.accept(inbound)
        slot = datetime.fromisoformat(inbound.id.partition("@")[2])
        late.append((datetime.now(UTC) - slot).total_seconds())

    clock = CronScheduler(
        CronFile(workspace),
        workspace / "state",
        pulse=Pulse(),
        clock=lambda: datetime.now(UTC),
        put=put,
    )
    with Path(os.devnull).open("w") as nowhere:
        logs.setup(settings(workspace), stream=nowhere)
        tasks = [asyncio.ensure_future(mailbox.serve())]
        await mailbox.ready()
        tasks.append(asyncio.ensure_future(clock.run()))
        gc.freeze()
        try:
            yield
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _noted(workspace: Path) -> None:
    """Wait until the clock has read the jobs and written when each is due."""
    path = workspace / "cron" / "jobs.json"
    before = path.stat().st_ino
    while path.stat().st_ino == before:
        await asyncio.sleep(0.1)


def _row(number: int, schedule: dict[str, Any]) -> dict[str, Any]:
    payload = {"kind": "agent_turn", "message": f"What is new in topic {number}?", "deliver": False}
    return {"id": f"job{number}", "name": f"job {number}", "schedule": schedule, "payload": payload}


def _write(workspace: Path, rows: list[dict[str, Any]]) -> None:
    (workspace / "cron").mkdir()
    (workspace / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": rows}))
