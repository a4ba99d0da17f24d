"""Keeps the garbage collector from walking over what was imported and never goes away.

It is the process's own: an application inside another program leaves that program's collector alone.
"""

from __future__ import annotations

import gc


def relax() -> None:
    """Have it look less often."""
    gc.set_threshold(50_000, 20, 50)


def pause() -> None:
    """Have it look at nothing while modules are imported: they leave hardly any garbage."""
    gc.disable()


def go_on() -> None:
    """End the pause; it never looks at what was imported in it."""
    gc.freeze()
    gc.enable()


def calm() -> None:
    """Have it look less often, and never again at what is there now."""
    gc.freeze()
    relax()
