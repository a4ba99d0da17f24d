"""Removes temporary files that killed writers left in a workspace, and none that is being written; blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from durable import sweep
from session.disk.layout import Layout

FOLDERS = ("state", "sessions", "memory", "cron")


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove them; return which files those were."""
    before = set(_temporary(layout))
    for folder in {path.parent for path in before}:
        sweep(folder)
    return sorted(path for path in before if not os.path.lexists(path))


def _temporary(layout: Layout) -> Iterator[Path]:
    for name in FOLDERS:
        yield from (layout.workspace / name).rglob(".*.tmp")
