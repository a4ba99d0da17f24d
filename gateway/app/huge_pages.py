"""Puts what a gateway has in memory onto huge pages, where it fills them.

A turn touches code and objects all over some 200 MB. On pages of 4 KiB the processor spends its time on
finding them, above all in a virtual machine, where each page costs a walk through the tables of both. On
huge pages the same turn took a sixth less of it (12.2 ms in place of 14.8 with LiteLLM), and the slowest
per cent of first words came 4 ms sooner. Python asks for none, and the system gives none by itself where
its setting is ``madvise``, as in most.

Only the place of pages changes, never what is on them: nothing here can harm but by the memory it takes.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("memory")

SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
MAPS: Final = Path("/proc/self/maps")
ROLLUP: Final = Path("/proc/self/smaps_rollup")
# From linux/mman.h; the kernel knows it since 6.1.
_COLLAPSE: Final = 25
# There is none left in the machine, or in what a container may have: there the system threw out whatever it
# could of what the container holds, which are the programs that it runs, before it said no.
_NONE_LEFT: Final = frozenset({errno.ENOMEM, errno.EBUSY})
# Of a huge page so much must be in use: the rest of it counts as ours from then on.
DENSE: Final = 0.75
# Of what was put onto huge pages so much must still be there, else each block is asked for again.
STILL: Final = 0.9
# Most is there once the model's library is imported, which takes some seconds; a cache fills for hours.
PAUSES_S: Final = (1.0, 2.0, 4.0)
LATER_S: Final = (8.0, 16.0, 60.0)
EVERY_S: Final = 600.0
# Whoever touches a block while it is moved waits, on a machine with much to do for up to 80 ms: from then on
# they are sought behind a second in which the process did little.
WATCHED_S: Final = 1.0
LITTLE_S: Final = 0.1
# Whoever asks for memory meanwhile waits for a block, and not for all of them.
BREATH_S: Final = 0.02

# Whether this process came out of another one, with whose pages it shares most of its own.
_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603 - a process is forked once, and knows it from nowhere else
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


@asynccontextmanager
async def kept() -> AsyncIterator[None]:
    """Look again and again for what has become dense, while the context is open.

    Not in a process that was forked: a page that is moved is shared no longer.
    """
    if _forked:
        yield
        return
    pages = HugePages()
    looking = asyncio.create_task(_keep(pages), name="huge pages")
    try:
        yield
    finally:
        # The thread outlives its task, and the process would wait for it.
        pages.ending.set()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _keep(pages: HugePages) -> None:
    at_once = ((pause_s, False) for pause_s in PAUSES_S)
    later = ((pause_s, True) for pause_s in chain(LATER_S, repeat(EVERY_S)))
    for pause_s, gently in chain(at_once, later):
        if not pages.allowed:
            return
        await asyncio.sleep(pause_s)
        if gently:
            await _until_little_is_done()
        try:
            gathered = await asyncio.to_thread(pages.gather)
        except OSError as error:
            # Where there is no /proc, as in some containers, nothing is out of order.
            log.info("memory.no_huge_pages", error=str(error))
            return
        except Exception:
            # It ends here: turns are only slower without.
            log.exception("memory.huge_pages_failed")
            return
        log.debug("memory.huge_pages", blocks=gathered)


async def _until_little_is_done() -> None:
    while True:
        before = time.process_time()
        await asyncio.sleep(WATCHED_S)
        if time.process_time() - before < LITTLE_S:
            return


class HugePages:
    """Those of this process. Where the system has none, or is told to give none, it does nothing.

    ``ending`` ends the search that is under way.
    """

    def __init__(self) -> None:
        self.ending = threading.Event()
        self._on_one: set[int] = set()
        try:
            self.allowed = "[never]" not in SETTING.read_text()
            self._size = int(SIZE.read_text())
        except (OSError, ValueError):
            self.allowed = False
            return
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._library.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p

    def gather(self) -> int:
        """Put each block of memory that is dense onto one huge page; return how many are on one.

        It takes some milliseconds for a block that is not yet, without the interpreter's lock; for threads.
        """
        if not self.allowed:
            return 0
        # A file that is mapped may have any name.
        blocks = set(own_blocks(MAPS.read_text("utf-8", "replace"), self._size))
        # Asked again of one that is there, the system stops each of its processors for a moment.
        self._on_one &= blocks
        # What was given back, and taken again at the same place, lies on small ones: nothing says which.
        if _on_huge_pages() < STILL * len(self._on_one) * self._size:
            self._on_one.clear()
        for block in sorted(blocks - self._on_one):
            if not self._is_dense(block):
                continue
            if self._library.madvise(block, self._size, _COLLAPSE) == 0:
                self._on_one.add(block)
                if self.ending.wait(BREATH_S):
                    break
            elif ctypes.get_errno() in _NONE_LEFT:
                # The next would cost the system another search for one.
                break
        return len(self._on_one)

    def _is_dense(self, block: int) -> bool:
        resident = ctypes.create_string_buffer(self._size // PAGESIZE)
        # What was given back meanwhile is not there: that is an answer as well.
        if self._library.mincore(block, self._size, resident) != 0:
            return False
        return resident.raw.count(1) >= DENSE * len(resident.raw)


def own_blocks(mappings: str, size: int) -> Iterator[int]:
    """Yield the address of each block, whole and at its place, of memory that is this process's alone."""
    for line in mappings.removesuffix("\n").split("\n"):
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        own = not name or name[0] == "[heap]" or name[0].startswith("[anon:")
        if rights != "rw-p" or inode != "0" or not own:
            continue
        begin, end = (int(each, 16) for each in place.split("-"))
        yield from range(-(-begin // size) * size, end - size + 1, size)


def _on_huge_pages() -> float:
    """Return how many bytes of this process's own memory lie on them; endless where nothing says so."""
    try:
        rows = ROLLUP.read_text().splitlines()
    except OSError:
        return math.inf
    return next((int(row.split()[1]) * 1024.0 for row in rows if row.startswith("AnonHugePages:")), math.inf)
