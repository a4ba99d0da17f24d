"""Runs what goes on beside the taking of letters, and tells of what fails there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

_log = structlog.get_logger()


@asynccontextmanager
async def alongside(
    work: Mapping[str, Coroutine[Any, Any, None]],
    on_crash: Callable[[BaseException], None],
) -> AsyncIterator[None]:
    """Run named work while the context is open; ``on_crash`` hears of one that fails."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task.crashed", task=task.get_name(), exc_info=error)
            on_crash(error)

    tasks = [asyncio.create_task(each, name=name) for name, each in work.items()]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
