"""Group commit: whatever waits for one database becomes one transaction, in one thread beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from durable.database import Job

T = TypeVar("T")
BATCH = 256


class Committing(Protocol):
    """What commits in the thread: a database, or what stands in front of one."""

    def commit(self, jobs: Sequence[Job]) -> list[object]:
        """Do the jobs in order; return for each its result, or the exception that met it."""
        ...

    def close(self) -> None:
        """Close what was opened, once or more often."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that waits for its batch.

    ``applied`` sees its outcome, a result or an exception, before anyone who waits for ``done``.
    """

    job: Job
    done: asyncio.Future[object]
    applied: Callable[[object], None] | None


def _settled(asked: Sequence[Asked], outcomes: Sequence[object]) -> None:
    for each, outcome in zip(asked, outcomes, strict=True):
        if each.applied is not None:
            each.applied(outcome)


class GroupCommit:
    """Jobs of one event loop for one database, done in the order in which they were asked for.

    While a batch is on its way to the disk the next one gathers, of ``BATCH`` jobs at most. A job is done
    whether or not its caller still waits.

    Args:
        closed: makes the error for jobs whose batch broke, or that the end came before.
        settled: called in the loop for each batch with its outcomes, before anyone who waits is answered;
            it calls every ``applied``, in order.
    """

    def __init__(
        self,
        database: Committing,
        *,
        name: str,
        closed: Callable[[], Exception],
        settled: Callable[[Sequence[Asked], Sequence[object]], None] = _settled,
    ) -> None:
        self._database = database
        self._closed = closed
        self._settled = settled
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: list[Asked] = []
        self._committing: list[Asked] = []
        self._running: asyncio.Future[list[object]] | None = None
        self._called = False
        self._closing = False
        self._moved = asyncio.Event()
        self._failure: BaseException | None = None

    async def open(self, work: Callable[[], T]) -> T:
        """Do ``work``, which opens the database, in the thread; it goes on if the caller is cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def ask(
        self,
        run: Callable[[], T],
        applied: Callable[[T | Exception], None] | None = None,
        *,
        writes: bool = True,
        after: Callable[[], T] | None = None,
    ) -> asyncio.Future[T]:
        """Add a job to the next batch; the future has its outcome once that is on disk.

        ``after`` as for ``Job``.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(
            Asked(
                Job(run, writes, after),
                cast("asyncio.Future[object]", done),
                cast("Callable[[object], None] | None", applied),
            )
        )
        self._call()
        return done

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is on its way to the disk."""
        return not self._waiting and not self._committing

    async def progress(self) -> None:
        """Return after the next batch; raises what broke one, for which no job and no disk is to blame."""
        self._moved.clear()
        if self._failure is None:
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Commit what waits, close the database, end the thread: nothing can interrupt it.

        Raises:
            Exception: what broke the last batch; the database is closed all the same.
        """
        self._closing = True
        committing, self._committing = self._committing, []
        waiting, self._waiting = self._waiting, []
        last = self._finish([each.job for each in waiting])
        try:
            try:
                if committing and self._running is not None:
                    self._settle(committing, await asyncio.shield(self._running))
            finally:
                # Whatever broke the batch before: the database is closed when this returns.
                self._settle(waiting, await asyncio.shield(last))
        finally:
            for each in (*committing, *waiting):
                _answer(each, self._closed())

    # ── the batches ───────────────────────────────────────────────────────────────────────────────────────

    def _call(self) -> None:
        """Have the next batch begun two rounds of the loop later.

        Whoever is woken together with the first one, by the batch before, has something to write too.
        """
        if not (self._called or self._committing or self._closing):
            self._called = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._begin)

    def _begin(self) -> None:
        self._called = False
        if self._closing:
            return
        self._committing, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        jobs = [each.job for each in self._committing]
        loop = asyncio.get_running_loop()
        self._running = loop.run_in_executor(self._thread, self._database.commit, jobs)
        self._running.add_done_callback(self._committed)

    def _committed(self, running: asyncio.Future[list[object]]) -> None:
        # From here on ``close`` answers for this batch too.
        if self._closing:
            return
        committed, self._committing = self._committing, []
        try:
            self._settle(committed, running.result())
        except Exception as error:  # noqa: BLE001 - it ends ``progress``; who waits must not wait for ever
            self._failure = error
            for each in committed:
                closed = self._closed()
                closed.__cause__ = error
                _answer(each, closed)
        self._moved.set()
        if self._waiting:
            self._call()

    def _settle(self, asked: Sequence[Asked], outcomes: Sequence[object]) -> None:
        """Have memory follow the file, then answer whoever waits."""
        self._settled(asked, outcomes)
        for each, outcome in zip(asked, outcomes, strict=True):
            _answer(each, outcome)

    def _finish(self, jobs: Sequence[Job]) -> asyncio.Future[list[object]]:
        """Commit, close, end the thread: it happens whether or not anyone waits for it."""

        def last() -> list[object]:
            try:
                return self._database.commit(jobs) if jobs else []
            finally:
                self._database.close()

        closing = asyncio.get_running_loop().run_in_executor(self._thread, last)
        self._thread.shutdown(wait=False)
        return closing


def _answer(asked: Asked, outcome: object) -> None:
    if asked.done.done():
        return
    if isinstance(outcome, Exception):
        asked.done.set_exception(outcome)
        # Nobody may be left to look at it.
        asked.done.exception()
    else:
        asked.done.set_result(outcome)
