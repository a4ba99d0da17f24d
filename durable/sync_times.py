"""How long the disk of this process took for its syncs, counted for whoever asks."""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from durable import clock

# Upper bounds in seconds; a last class holds what is beyond them.
SYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_lock = threading.Lock()
_counts = [0] * (len(SYNC_BOUNDS_S) + 1)
_sum_s = 0.0


def sync_counts() -> tuple[list[int], float]:
    """Return how many syncs took up to each of ``SYNC_BOUNDS_S`` and longer, and all their seconds."""
    with _lock:
        return list(_counts), _sum_s


def sync_data(fd: int) -> None:
    """Sync the content of a file, and count how long it took."""
    with timed_sync():
        # macOS has the other alone.
        getattr(os, "fdatasync", os.fsync)(fd)


def sync_file(path: Path) -> None:
    """Sync the content of a file that another process may have written; none there is fine."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_data(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def timed_sync() -> Iterator[None]:
    """Count how long the sync within takes, however it ends."""
    began = clock.monotonic()
    try:
        yield
    finally:
        _note(clock.monotonic() - began)


def _note(took_s: float) -> None:
    global _sum_s  # noqa: PLW0603 - a count of the process, as the kernel keeps some
    with _lock:
        _counts[bisect_left(SYNC_BOUNDS_S, took_s)] += 1
        _sum_s += took_s
