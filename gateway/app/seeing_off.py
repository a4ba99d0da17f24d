"""Ends tasks that were told to end: a library may swallow the one cancellation that a task gets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import structlog

log = structlog.get_logger("application")
# What closes connections in good order takes less.
AGAIN_S = 10.0


async def see_off(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until tasks that were cancelled have ended; one that goes on is named, and cancelled again."""
    left = {task for task in tasks if not task.done()}
    while left:
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in left:
            log.warning("task.lingers", task=task.get_name(), at=_place(task))
            task.cancel()


def _place(task: asyncio.Task[Any]) -> str:
    """Return the line at which a task waits."""
    frames = task.get_stack(limit=1)
    return f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
