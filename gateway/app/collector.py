"""Keeps the garbage collector from walking over what was imported and never goes away.

It is the process's own: an application inside another program leaves that program's collector alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def relax() -> None:
    """Have it look less often."""
    gc.set_threshold(50_000, 20, 50)


@contextmanager
def importing() -> Iterator[None]:
    """Have it look at nothing that is imported, now or later: imports leave hardly any garbage."""
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
