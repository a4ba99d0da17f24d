"""Has the C library's allocator keep less of what is free: what a process has let go of counts as its memory.

Left alone it gives each of the disk's threads an arena of its own, and holds on to larger and larger pieces
as transcripts grow: 200,000 turns through a full cache took some 5 MB more, of which nothing was in use.
"""

from __future__ import annotations

import ctypes
import os

# From glibc's malloc.h; each has a default that moves with what is asked for, unless it is set.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Most threads hold the interpreter's lock when they ask; the rest are the database's, one at a time.
ARENAS = 2
# The thresholds are bytes. A piece so large goes back to the system at once: a transcript that was read, say.
MMAP_FROM = 128 * 1024
# Far more than a turn asks for, so that the top is not taken and given back by every one.
TRIM_FROM = 4 * 2**20


def keep_little() -> None:
    """Set it so for this process; call it before there are threads. Another C library is left as it is.

    What the environment says of an option (``MALLOC_ARENA_MAX`` …, all of them in ``GLIBC_TUNABLES``) stands.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    for variable, tunable, option, value in (
        ("MALLOC_ARENA_MAX", "arena_max", _ARENA_MAX, ARENAS),
        ("MALLOC_MMAP_THRESHOLD_", "mmap_threshold", _MMAP_THRESHOLD, MMAP_FROM),
        ("MALLOC_TRIM_THRESHOLD_", "trim_threshold", _TRIM_THRESHOLD, TRIM_FROM),
    ):
        if variable not in os.environ and f"glibc.malloc.{tunable}=" not in tuned:
            set_option(option, value)
