"""Keeps the garbage collector from walking over what was imported and never goes away.

It is the process's own: an application inside another program leaves that program's collector alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# All chats wait while it walks, 0.1 to 0.2 µs for each object that is new: this many, ten times as many, and
# then all that is not frozen. A turn leaves hardly anything to it (``tests/gateway/turns/test_rings.py``),
# so that looking at fewer at a time costs no throughput; LiteLLM leaves a few hundred a request.
THRESHOLDS = 10_000, 10, 50
# So long after a turn its answer is on its way, and whoever reads it has hardly written again.
TIDY_AFTER_S = 0.005
# Whether the process is the gateway's.
_ours = False


def relax() -> None:
    """Have it look less often, in a process that is the gateway's."""
    global _ours  # noqa: PLW0603 - the collector is one per process, too
    _ours = True
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def importing() -> Iterator[None]:
    """Have it look at nothing in the meantime, and never at what was imported: that leaves hardly garbage."""
    if not _ours:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def calm() -> None:
    """Have it look less often, and never again at what is there now."""
    gc.freeze()
    relax()


class Tidying:
    """Has it look at what is new behind turns, so that it need not in the midst of one."""

    def __init__(self) -> None:
        self._waits = False

    def soon(self) -> None:
        """Let it look once the answer is out; at the turns that end meanwhile along with this one."""
        if _ours and not self._waits:
            self._waits = True
            # Help and usage load nothing of it.
            from asyncio import get_running_loop

            get_running_loop().call_later(TIDY_AFTER_S, self._look)

    def _look(self) -> None:
        self._waits = False
        # The middle generation, too: what is left of each look goes there, and stays little.
        gc.collect(1)
