"""Children that die at each step of some work, each on a copy of its workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.support import forked
from tests.support.dying import die_at
from tests.support.harness import ROOT

CHANGES = ("rename", "link", "unlink", "fsync", "fdatasync", "pwrite", "write", "rmdir", "mkdir")
SYNCS = ("fsync", "fdatasync")


def _unsynced(fd: int) -> None:
    """Stand for a sync."""


def victims(module: str, folder: Path, *more: str) -> int:
    """Run a module that prints how many children ``die_everywhere`` had, and return the number.

    In a process of its own: children of a process with threads would inherit locks that nobody lets go of.
    """
    command = [sys.executable, "-m", f"tests.session.{module}", str(folder), *more]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120).stdout)


async def victim(module: str, folder: Path, *more: str) -> int:
    """Run a module of ``tests.session`` as a process that dies somewhere; return how it ended."""
    process = await forked.spawn(
        *(sys.executable, "-m", f"tests.session.{module}", str(folder), *more),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


def die_everywhere(
    folder: Path, work: Callable[[Path], Coroutine[Any, Any, None]], *, changes: Sequence[str] = CHANGES
) -> int:
    """Do the work in one child after the other until one gets to its end; return how many there were.

    The child with number n gets a copy of the workspace in ``folder`` that is named by it, and is killed at
    its n-th change of the disk, of those that ``changes`` names.
    """
    number = 0
    while True:
        number += 1
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            # No sync is waited for: whoever is killed leaves to others all that the system was given.
            for name in SYNCS:
                setattr(os, name, _unsynced)
            die_at(number, {name: getattr(os, name) for name in changes})
            asyncio.run(work(copy))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return number
        assert code == -signal.SIGKILL, "the work failed by itself"
