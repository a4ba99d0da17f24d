"""The threads in which tools work: slow ones hold up each other, and neither a reply nor a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

T = TypeVar("T")

# The loop's own threads, six on two cores, serve what is sent, leases, cursors and the clock of the jobs.
THREADS: Final = 8
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tool")


async def off_loop(work: Callable[[], T]) -> T:
    """Run ``work`` in one of the threads, in the order in which it was asked for."""
    return await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, work)
