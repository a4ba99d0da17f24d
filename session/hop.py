"""Carries disk work off the event loop, many pieces in one hop: while one batch runs, the next collects."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from session.errors import StoreError

T = TypeVar("T")
_Outcome = tuple["Job[Any]", Any, BaseException | None]


class Job(asyncio.Future[T]):
    """A piece of disk work under way: whoever waits for it waits to its end, even when cancelled meanwhile.

    A task that is cancelled while it awaits this future gets its CancelledError when the work has ended, so
    that no lock is let go too early and nobody has to guess whether a line was written.
    """

    abort: threading.Event | None = None  # set to hurry work that is no longer wanted
    unwanted = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Remember the wish, and go on."""
        self.unwanted = True
        if self.abort is not None:
            self.abort.set()
        return False


class Hop:
    """A few threads over one line of short jobs; each batch comes back to the loop in one wake-up."""

    def __init__(self, *, threads: int = 2) -> None:
        self._threads = threads
        self._waiting: deque[tuple[Job[Any], Callable[[], Any]]] = deque()
        self._ready = threading.Condition()
        self._started: list[threading.Thread] = []
        self._closed = False

    def start(self, job: Callable[[], T]) -> Job[T]:
        """Queue a job."""
        future: Job[T] = Job(loop=asyncio.get_running_loop())
        with self._ready:
            if self._closed:
                raise StoreError("the store is closed")
            self._waiting.append((future, job))
            if len(self._started) < self._threads:
                thread = threading.Thread(target=self._work, name=f"disk-{len(self._started)}", daemon=True)
                self._started.append(thread)
                thread.start()
            self._ready.notify()
        return future

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._started:
            thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            done: list[_Outcome] = []
            for future, job in batch:
                try:
                    done.append((future, job(), None))
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
                    done.append((future, None, error))
            _deliver(done)

    def _next_batch(self) -> list[tuple[Job[Any], Callable[[], Any]]]:
        with self._ready:
            while not self._waiting:
                if self._closed:
                    return []
                self._ready.wait()
            share = -(-len(self._waiting) // self._threads)
            return [self._waiting.popleft() for _ in range(share)]


def start_thread(job: Callable[[], T], *, name: str, abort: threading.Event | None = None) -> Job[T]:
    """Run a job that may take long in a thread of its own; ``abort`` is set when nobody wants it any more."""
    future: Job[T] = Job(loop=asyncio.get_running_loop())
    future.abort = abort

    def work() -> None:
        try:
            outcome: _Outcome = (future, job(), None)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
            outcome = (future, None, error)
        _deliver([outcome])

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
            except RuntimeError:  # the loop was closed in this very moment: nobody waits any more
                continue


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
            if future.unwanted:
                future.exception()  # looked at: nobody is left to tell
        else:
            future.set_result(value)
