"""How many arenas the C library's allocator has in another process, by how they lie in its memory."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

# On 64 bits each but the first reserves so much, at a multiple of it, and makes its beginning usable.
RESERVED = 64 * 2**20

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator")


def arenas(pid: int) -> int:
    """Count those of a process, the first included."""
    found = 1
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, *rest = line.split()
        begin, end = (int(number, 16) for number in place.split("-"))
        # What is reserved and not yet usable ends where the arena does; nothing is mapped there.
        if rights == "---p" and len(rest) == 3 and end % RESERVED == 0 and end - begin < RESERVED:
            found += 1
    return found
