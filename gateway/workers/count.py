"""How many processes a gateway has for conversations."""

from __future__ import annotations

import os
from typing import Final

from gateway.config.settings import Settings
from gateway.errors import ConfigError

ALONE: Final = (
    "workers: one process works here, since the embedded queue is one's alone; RabbitMQ lets several"
)


def count(settings: Settings, role: str, asked: int | None = None) -> int:
    """Return how many workers a gateway starts; 0: it does the work itself, in one process.

    Args:
        settings: ``limits.workers``, which counts for all of its processes but adapters alone.
        role: that of the process.
        asked: what the command line says instead.

    Raises:
        ConfigError: workers were asked for where none have anything to do.
    """
    if role == "channels":
        if asked is not None:
            raise ConfigError(
                ["--workers: a process of role channels runs no conversations"],
                hint="give --workers to the process of role session",
            )
        return 0
    wanted = settings.limits.workers if asked is None else asked
    number = wanted or _cores()
    return 0 if number == 1 or settings.broker.embedded else number


def remarks(settings: Settings, role: str, asked: int | None = None) -> list[str]:
    """Say in plain lines what becomes of the wish for several workers where it cannot be had."""
    if role == "channels":
        return []
    wanted = settings.limits.workers if asked is None else asked
    if settings.broker.embedded:
        return [ALONE] if wanted != 1 else []
    number, partitions = count(settings, role, asked), settings.broker.partitions
    if number > partitions:
        return [f"workers: {number} share {partitions} partitions, so that {number - partitions} have none"]
    return []


def _cores() -> int:
    # macOS has no such call.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
