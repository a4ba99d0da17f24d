"""How many arenas the C library's allocator has in another process, by how they lie in its memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

# On 64 bits a heap of any arena but the first reserves so much, at a multiple of it, and makes its beginning
# usable; there stands whose heap it is. An arena that grows has several.
RESERVED = 64 * 2**20
POINTER_BYTES = 8

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator")


def arenas(pid: int) -> int:
    """Count those of a process, the first included."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        owners = {os.pread(memory, POINTER_BYTES, heap) for heap in _heaps(pid)}
    finally:
        os.close(memory)
    return 1 + len(owners)


def _heaps(pid: int) -> list[int]:
    """Return where heaps begin: what is usable of each, then what is reserved, up to the next multiple."""
    found: list[int] = []
    usable = usable_end = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, *rest = line.split()
        begin, end = (int(number, 16) for number in place.split("-"))
        if len(rest) > 3:
            continue
        heap = end - RESERVED
        # What lies before a heap may be one mapping with its beginning.
        if rights == "---p" and end % RESERVED == 0 and begin == usable_end and usable <= heap < usable_end:
            found.append(heap)
        if rights == "rw-p":
            usable, usable_end = begin, end
    return found
