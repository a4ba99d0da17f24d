"""Children that die at each step of some work, each on a copy of its workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

CHANGES = ("rename", "link", "unlink", "fsync", "fdatasync", "pwrite", "write", "rmdir", "mkdir")
SYNCS = ("fsync", "fdatasync")


def victims(module: str, folder: Path, *more: str) -> int:
    """Run a module that prints how many children ``die_everywhere`` had, and return the number.

    In a process of its own: children of a process with threads would inherit locks that nobody lets go of.
    """
    command = [sys.executable, "-m", f"tests.session.{module}", str(folder), *more]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120).stdout)


def die_everywhere(folder: Path, work: Callable[[Path], Coroutine[Any, Any, None]]) -> int:
    """Do the work in one child after the other until one gets to its end; return how many there were.

    The child with number n gets a copy of the workspace in ``folder`` that is named by it, and is killed at
    its n-th change of the disk.
    """
    number = 0
    while True:
        number += 1
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            die_at(number)
            asyncio.run(work(copy))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return number
        assert code == -signal.SIGKILL, "the work failed by itself"


def die_at(left: int, steps: Sequence[str] = CHANGES, *, unsynced: Collection[str] = SYNCS) -> None:
    """Have this process die before its ``left``-th call of ``os`` that is one of ``steps``.

    None of ``unsynced`` is waited for: whoever is killed leaves to others all that the system was given,
    synced or not.
    """

    def counted(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*args, **more)

        return call

    for name in steps:
        setattr(os, name, counted(getattr(os, name) if name not in unsynced else lambda fd: None))
