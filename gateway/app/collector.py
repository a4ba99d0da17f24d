"""Keeps the garbage collector from walking over what was imported and never goes away.

It is the process's own: an application inside another program leaves that program's collector alone.
"""

from __future__ import annotations

import gc


def relax() -> None:
    """Have it look less often; before the imports, since they leave hardly any garbage."""
    gc.set_threshold(50_000, 20, 50)


def calm() -> None:
    """Have it look less often, and never again at what is there now."""
    gc.freeze()
    relax()
