"""Jobs beside the loop: one thread while it keeps up, more where jobs have to wait, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from session.disk.threads import PATIENCE_S, DiskJob, DiskThreads
from session.errors import StoreError

THREADS = 3


def name() -> str:
    return threading.current_thread().name


async def in_time(*jobs: DiskJob[str]) -> set[str]:
    """Return what the jobs came to; no cancellation would end the wait for one."""
    done, waiting = await asyncio.wait(jobs, timeout=20)
    assert not waiting
    return {job.result() for job in done}


@asynccontextmanager
async def held(disk: DiskThreads, count: int) -> AsyncIterator[threading.Event]:
    """Have so many threads hang in a job each, until the event is set or the context ends."""
    let_go, hanging = threading.Event(), threading.Semaphore(0)
    jobs: list[DiskJob[bool]] = []

    def hang() -> bool:
        hanging.release()
        return let_go.wait()

    try:
        for _ in range(count):
            jobs.append(disk.start(hang))
            assert await asyncio.to_thread(hanging.acquire, timeout=20)
        yield let_go
    finally:
        let_go.set()
        await asyncio.gather(*jobs)


async def test_one_thread_does_all_while_it_keeps_up() -> None:
    disk = DiskThreads(threads=THREADS)
    names = {await disk.start(name) for _ in range(50)}
    names |= set(await asyncio.gather(*(disk.start(name) for _ in range(200))))
    disk.close()
    assert names == {"disk-0"}


async def test_a_job_that_waits_for_too_long_is_done_by_the_next_thread() -> None:
    disk = DiskThreads(threads=THREADS)
    async with held(disk, 1):
        assert await in_time(disk.start(name)) == {"disk-1"}
        # Whatever is asked for meanwhile has to wait, too.
        assert await in_time(*(disk.start(name) for _ in range(100))) <= {"disk-1", "disk-2"}
    async with held(disk, 2):
        assert len(await in_time(disk.start(name))) == 1
    disk.close()


async def test_no_more_threads_than_allowed_work_and_the_next_free_one_goes_on() -> None:
    disk = DiskThreads(threads=THREADS)
    async with held(disk, THREADS) as let_go:
        waits = disk.start(name)
        await asyncio.sleep(5 * PATIENCE_S)
        assert not waits.done()
        let_go.set()
        assert len(await in_time(waits)) == 1
    disk.close()


def test_a_loop_that_ended_leaves_the_next_one_its_patience() -> None:
    disk = DiskThreads(threads=THREADS)
    let_go, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        let_go.wait()

    async def leaves_a_job_behind() -> None:
        disk.start(hang)
        await asyncio.to_thread(hanging.wait, 10)
        # Its wait is watched by a loop that is gone before it is over.
        disk.start(name)
        await asyncio.sleep(0)

    async def next_one() -> set[str]:
        return await in_time(disk.start(name))

    asyncio.run(leaves_a_job_behind())
    try:
        assert asyncio.run(next_one()) == {"disk-1"}
    finally:
        let_go.set()
        disk.close()


@pytest.mark.parametrize("hanging", [0, 1])
async def test_the_end_does_what_is_queued_and_refuses_what_comes_later(hanging: int) -> None:
    disk = DiskThreads(threads=THREADS)
    async with held(disk, hanging) as let_go:
        jobs = [disk.start(name) for _ in range(30)]
        let_go.set()
        disk.close()
        assert {await job for job in jobs} == {"disk-0"}
        with pytest.raises(StoreError, match="closed"):
            disk.start(name)
