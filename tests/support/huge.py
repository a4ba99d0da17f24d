"""How much of a process's memory lies on huge pages, as the system tells it."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SOME = 6 * 2**20
COLLAPSE = 25


def _are_given() -> bool:
    """Say whether this system gives one to who asks: its kernel may be old, or told to give none."""
    try:
        with mmap.mmap(-1, SOME, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:] = b"x" * SOME
            memory.madvise(COLLAPSE)
        return "[never]" not in SETTING.read_text()
    except OSError:
        return False


needs_huge_pages = pytest.mark.skipif(not _are_given(), reason="this system gives no huge pages")


def on_huge_pages(pid: int | str = "self") -> tuple[int, int]:
    """Return the bytes on huge pages, and all that are the process's own."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (row.partition(":") for row in rows)}
    return found["AnonHugePages"], found["Anonymous"]
