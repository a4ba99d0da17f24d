"""Jobs for one SQLite file: in order, many to a transaction, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import durable


class Refused(Exception):
    """What a job gets when the disk refused, or the end came first."""


class Numbers:
    """A file of numbers."""

    def __init__(
        self, folder: Path, *, retry_each: bool = False, at: Callable[[str], None] | None = None
    ) -> None:
        schema = durable.Schema(["CREATE TABLE numbers (n INTEGER UNIQUE, body BLOB)"], 1, 2**20)
        self.database = durable.Database(
            folder / "numbers.db",
            schema,
            down=lambda error: Refused(str(error)),
            retry_each=retry_each,
            at=at,
        )

    def add(self, number: int, size: int = 0) -> int:
        """Store a number."""
        self.database.file.execute("INSERT INTO numbers VALUES (?, zeroblob(?))", (number, size))
        return number

    def all(self) -> list[int]:
        """Read the numbers."""
        return [n for (n,) in self.database.file.execute("SELECT n FROM numbers ORDER BY n")]

    def at_most(self, pages: int) -> None:
        """Let SQLite find the file full at so many pages."""
        self.database.file.execute(f"PRAGMA max_page_count={pages}")


@asynccontextmanager
async def committing(numbers: Numbers) -> AsyncIterator[durable.GroupCommit]:
    commits = durable.GroupCommit(numbers.database, name="numbers", closed=lambda: Refused("closed"))
    await commits.open(numbers.database.open)
    try:
        yield commits
    finally:
        await commits.close()


async def test_what_waits_together_is_one_transaction(tmp_path: Path) -> None:
    """Jobs asked for at once are committed at once, in their order."""
    steps: list[str] = []
    numbers = Numbers(tmp_path, at=steps.append)
    async with committing(numbers) as commits:
        found = await asyncio.gather(*(commits.ask(lambda n=n: numbers.add(n)) for n in range(9)))

    assert found == list(range(9))
    assert steps.count("committed") == 1


async def test_a_job_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    """A fault of one job's own is its outcome alone, whatever it raises."""

    def fails() -> None:
        numbers.add(7)
        raise AttributeError("a fault of ours")

    numbers = Numbers(tmp_path)
    async with committing(numbers) as commits:
        jobs = [commits.ask(lambda: numbers.add(1)), commits.ask(fails), commits.ask(lambda: numbers.add(1))]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert await commits.ask(numbers.all, writes=False) == [1]

    assert found[0] == 1
    assert isinstance(found[1], AttributeError)
    assert isinstance(found[2], sqlite3.IntegrityError)


@pytest.mark.parametrize(("retry_each", "kept"), [(False, []), (True, [1, 3])])
async def test_a_full_disk_refuses_the_batch(tmp_path: Path, retry_each: bool, kept: list[int]) -> None:
    """A batch that does not fit is refused whole, or only what is too large where order does not matter."""
    numbers = Numbers(tmp_path, retry_each=retry_each)
    async with committing(numbers) as commits:
        await commits.ask(lambda: numbers.at_most(10))
        sizes = {1: 10, 2: 200_000, 3: 10}
        jobs = [commits.ask(lambda n=n: numbers.add(n, sizes[n])) for n in sizes]
        reading = commits.ask(numbers.all, writes=False)
        found = await asyncio.gather(*jobs, return_exceptions=True)

        assert [type(each) is not Refused for each in found] == [n in kept for n in sizes]
        assert set(await reading) <= set(kept)
        assert await commits.ask(numbers.all, writes=False) == kept


async def test_what_was_asked_is_done_although_its_caller_is_gone(tmp_path: Path) -> None:
    """A job is done although its caller is cancelled meanwhile, at the end at the latest."""
    gate = threading.Event()
    numbers = Numbers(tmp_path, at=lambda _: gate.wait() and None)
    async with committing(numbers) as commits:
        first, second = commits.ask(lambda: numbers.add(1)), commits.ask(lambda: numbers.add(2))
        first.cancel()
        gate.set()
        assert await second == 2
        third = commits.ask(lambda: numbers.add(3))
        third.cancel()

    async with committing(numbers) as commits:
        assert await commits.ask(numbers.all, writes=False) == [1, 2, 3]


async def test_a_batch_that_breaks_is_told_and_the_next_is_committed(tmp_path: Path) -> None:
    """Whatever breaks a batch, nobody waits for ever, nothing half done stays, and the next one is served."""
    steps: list[str] = []

    def breaks(step: str) -> None:
        steps.append(step)
        if steps.count("written") == 1 and step == "written":
            raise MemoryError

    numbers = Numbers(tmp_path, at=breaks)
    async with committing(numbers) as commits:
        with pytest.raises(Refused, match="closed"):
            await commits.ask(lambda: numbers.add(1))
        with pytest.raises(MemoryError):
            await commits.progress()
        assert await commits.ask(lambda: numbers.add(2)) == 2
        assert await commits.ask(numbers.all, writes=False) == [2]
