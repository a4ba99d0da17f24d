"""Moves a conversation in children that die at each step: ``python -m tests.session.moving_victim DIR``.

The workspace in DIR is copied for each child; the child with number n is killed at its n-th change of the
disk, and the copy is named by it. The last one is the first that got to its end. Prints how many there are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

from session import disk
from session.key import SessionKey
from session.moving import move
from session.store import Store

OLD, NEW = SessionKey("telegram:-5"), SessionKey("telegram:-1005")
CHANGES = ("rename", "link", "unlink", "fsync", "fdatasync", "pwrite", "write", "rmdir", "mkdir")


def dying(inner: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **more)

    return call


async def moved(workspace: Path) -> None:
    store = Store(workspace, zone=UTC)
    await move(store, OLD, NEW)
    await store.aclose()


def main() -> int:
    folder = Path(sys.argv[1])
    assert disk
    number = 0
    while True:
        number += 1
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            left = [number]
            for name in CHANGES:
                setattr(os, name, dying(getattr(os, name), left))
            asyncio.run(moved(copy))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(number)
            return 0


if __name__ == "__main__":
    sys.exit(main())
