"""Waits in tests for what tells nobody that it happened."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

EVERY_S = 0.005


async def until(predicate: Callable[[], Any], within_s: float = 60.0) -> Any:
    """Look again and again until ``predicate`` says something true, and return that.

    What ``predicate`` returns is awaited if it can be. Raises ``TimeoutError`` after ``within_s`` seconds.
    """
    async with asyncio.timeout(within_s):
        while True:
            found = predicate()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(EVERY_S)
