"""Waits for whichever of several things comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*waits: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Return when one of ``waits`` has ended, or after ``timeout_s`` seconds; the others are cancelled.

    No time is left if ``timeout_s`` is below 0. Several may have come at once: look at each.
    """
    tasks = [asyncio.create_task(wait, name="first of") for wait in waits]
    within_s = None if timeout_s is None else max(0.0, timeout_s)
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
