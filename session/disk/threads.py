"""Carries disk work off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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


def start_thread(job: Callable[[], T], *, name: str, abort: threading.Event | None = None) -> DiskJob[T]:
    """Run a job that may take long in a thread of its own; ``abort`` is set when nobody wants it any more."""
    future: DiskJob[T] = DiskJob(loop=asyncio.get_running_loop())
    future.abort = abort

    def work() -> None:
        value: Any = None
        failure: BaseException | None = None
        try:
            value = job()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
            failure = error
        # The loop may be closed in this very moment: nobody waits any more.
        with suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(_resolve, future, value, failure)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _resolve(future: DiskJob[Any], value: object, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(value)
        return
    future.set_exception(failure)
    if future.unwanted:
        # Look at the error, or asyncio logs it as never retrieved: nobody is left to tell.
        future.exception()
