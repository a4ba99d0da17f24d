"""Cores of the machine: a process that keeps to one of them, and what it starts, which does not.

A process of several threads that take turns, as one interpreter's do, gains nothing by a second core where
that one is busy too: a thread that has the interpreter's lock waits there behind another process, while the
core that it came from has nothing to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Kept:
    """What this process keeps to, and might use."""

    def __init__(self) -> None:
        self.core: int | None = None
        self.allowed: frozenset[int] = frozenset()
        # How many blocks of ``on_any_core`` a thread is in.
        self.inside = threading.local()


_kept = _Kept()


def keep_to_core(core: int) -> None:
    """Have this process, and the threads that it begins from now on, run on one core alone.

    Raises:
        OSError: the system allows it no such thing.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    _kept.core, _kept.allowed = core, allowed


@contextmanager
def on_any_core() -> Iterator[None]:
    """Begin in here a process that may run on every core that this one might use; of threads, one each."""
    if _kept.core is None:
        yield
        return
    depth = getattr(_kept.inside, "depth", 0)
    _kept.inside.depth = depth + 1
    os.sched_setaffinity(0, _kept.allowed)
    try:
        yield
    finally:
        _kept.inside.depth -= 1
        # Tasks of one loop may overlap here: the last that leaves goes back.
        if _kept.inside.depth == 0:
            os.sched_setaffinity(0, {_kept.core})
