"""Looks whether a lock of a conversation stays held, which is held only around a write."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import durable
from gateway.app.daemons import DaemonRegistry
from gateway.doctor.finding import Finding

_HELD_S: Final = 1.0
_NAMED: Final = 5


def check(workspace: Path) -> Finding:
    """Say how it stands: level, words, cure. One that stays held belongs to a process that does not move."""
    stuck = [path for path in (workspace / "state" / "keys").glob("*.lock") if _is_held(path)]
    if stuck:
        durable.pause(_HELD_S)
    stuck = [path for path in stuck if _is_held(path)]
    if stuck:
        names = ", ".join(path.stem for path in stuck[:_NAMED])
        cure = "look for a stopped process; the next message of the chat takes the lock over after 30 s"
        return "warn", f"held for over {_HELD_S:g} s: {names}", cure
    running = DaemonRegistry(workspace).running()
    who = ", ".join(f"{one.role} is running as process {one.pid}" for one in running)
    return "ok", who or "the gateway is not running", ""


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
