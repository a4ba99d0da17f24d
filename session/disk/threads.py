"""Carries disk work off the event loop, many jobs in one wake-up: while a batch runs, the next collects."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from session.errors import StoreError

T = TypeVar("T")
# Large batches spare commits of the disk; a small one comes back while the next is under way.
_BATCH = 24
# So long a job waits for the thread that works before another is woken: on a quick disk each further one only
# takes the interpreter's lock from the loop and the others (99th percentile at half load: 19 ms with two that
# both work, 12 ms so), on a slow one they wait for it side by side.
PATIENCE_S = 0.02
# With the loop's time when it was asked for, in seconds.
_Piece = tuple["DiskJob[Any]", Callable[[], Any], float]
_Outcome = tuple["DiskJob[Any]", Any, BaseException | None]


class DiskJob(asyncio.Future[T]):
    """A piece of disk work under way: whoever waits for it waits to its end, even when cancelled meanwhile.

    A task that is cancelled while it awaits this future gets its CancelledError when the work has ended, so
    that no lock is let go too early and nobody has to guess whether a line was written.
    """

    # Set to hurry work that is no longer wanted.
    abort: threading.Event | None = None
    unwanted = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Remember the wish, and go on."""
        self.unwanted = True
        if self.abort is not None:
            self.abort.set()
        return False


@dataclass(frozen=True, slots=True)
class WriteThenSync(Generic[T]):
    """What a job may return: what is left to do of it, behind its write.

    All jobs of a batch write, then each syncs: one commit of the file system serves them all. ``hint`` comes
    in between if there are several; it starts the disk on each file before the first sync waits.
    """

    finish: Callable[[], T]
    hint: Callable[[], None]


class DiskThreads:
    """A few threads that share one queue of short jobs; a batch goes there and comes back in one wake-up.

    One of them works as long as it keeps up; the others help where jobs wait longer than ``PATIENCE_S``.
    """

    def __init__(self, *, threads: int = 4) -> None:
        self._threads = threads
        # In this pass of the loop.
        self._asked: deque[_Piece] = deque()
        self._waiting: deque[_Piece] = deque()
        self._ready = threading.Condition()
        self._started: list[threading.Thread] = []
        # Those that were woken and do not wait again yet.
        self._working = 0
        # The loop that looks after jobs which wait.
        self._watching: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def start(self, job: Callable[[], T | WriteThenSync[T]]) -> DiskJob[T]:
        """Queue a job; those of one pass of the loop go to the threads together."""
        if self._closed:
            raise StoreError("the store is closed")
        loop = asyncio.get_running_loop()
        future: DiskJob[T] = DiskJob(loop=loop)
        if not self._asked:
            loop.call_soon(self._hand_over)
        self._asked.append((future, job, loop.time()))
        return future

    def _hand_over(self) -> None:
        loop = asyncio.get_running_loop()
        with self._ready:
            if not self._closed:
                self._waiting.extend(self._asked)
                self._asked.clear()
                if not self._working:
                    self._wake()
                elif self._working < self._threads and self._watching is not loop:
                    self._watching = loop
                    loop.call_later(PATIENCE_S, self._look)
        # These came in while another thread closed the store.
        while self._asked:
            self._asked.popleft()[0].set_exception(StoreError("the store is closed"))

    def _look(self) -> None:
        """Wake one more thread if the next job has waited for too long; look again while one waits."""
        loop = asyncio.get_running_loop()
        self._watching = None
        with self._ready:
            if not self._waiting:
                return
            left_s = self._waiting[0][2] + PATIENCE_S - loop.time()
            if left_s <= 0:
                self._wake()
                left_s = PATIENCE_S
            if self._working < self._threads:
                self._watching = loop
                loop.call_later(left_s, self._look)

    def _wake(self) -> None:
        """Have one more thread at work, where there is one."""
        if self._working == self._threads:
            return
        if self._working < len(self._started):
            self._ready.notify()
        else:
            thread = threading.Thread(target=self._work, name=f"disk-{len(self._started)}", daemon=True)
            thread.start()
            self._started.append(thread)
        self._working += 1

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._ready:
            self._waiting.extend(self._asked)
            self._asked.clear()
            if self._waiting and not self._working:
                self._wake()
            self._closed = True
            self._ready.notify_all()
        for thread in self._started:
            thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            done = [_outcome(future, job) for future, job, _ in batch]
            written = [value for _, value, _ in done if isinstance(value, WriteThenSync)]
            for job_written in written if len(written) > 1 else ():
                job_written.hint()
            _deliver(
                [
                    _outcome(each[0], each[1].finish) if isinstance(each[1], WriteThenSync) else each
                    for each in done
                ]
            )

    def _next_batch(self) -> list[_Piece]:
        with self._ready:
            while not self._waiting:
                if self._closed:
                    return []
                self._working -= 1
                self._ready.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]


def _outcome(future: DiskJob[Any], job: Callable[[], Any]) -> _Outcome:
    try:
        return future, job(), None
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
        return future, None, error


def finished(value: T | WriteThenSync[T]) -> T:
    """Return what a job came to, synced if it only wrote so far."""
    return cast("T", value.finish() if isinstance(value, WriteThenSync) else value)


def start_thread(
    job: Callable[[], T | WriteThenSync[T]], *, name: str, abort: threading.Event | None = None
) -> DiskJob[T]:
    """Run a job that may take long in a thread of its own; ``abort`` is set when nobody wants it any more."""
    future: DiskJob[T] = DiskJob(loop=asyncio.get_running_loop())
    future.abort = abort

    def work() -> None:
        _deliver([_outcome(future, lambda: finished(job()))])

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _deliver(done: list[_Outcome]) -> None:
    """Hand outcomes to their loops, one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in done:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, outcomes in by_loop.items():
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(partial(_resolve, outcomes))
            # The loop was closed in this very moment: nobody waits any more.
            except RuntimeError:
                continue


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            if future.unwanted:
                # Look at the error, or asyncio logs it as never retrieved: nobody is left to tell.
                future.exception()
        else:
            future.set_result(value)
