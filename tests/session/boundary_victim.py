"""Opens an older session again, closes one or ends one for a message, in children that die at each step.

``python -m tests.session.boundary_victim DIR reopen|close|part ULID``: the workspace in DIR is copied for
each one; the one with number n is killed at its n-th change of the disk, and its copy is named by it. The
last one is the first that got to its end. Prints how many there are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from datetime import UTC
from pathlib import Path

from session import boundary
from session.key import SessionKey
from session.store import Store
from tests.session.moving_victim import CHANGES, dying

KEY = SessionKey("telegram:1")


async def done(workspace: Path, what: str, session_id: str) -> None:
    store = Store(workspace, zone=UTC)
    async with store.open(KEY) as session:
        if what == "reopen":
            await session.change(lambda *hands: boundary.reopen(*hands, session_id=session_id, by="cmd"))
        elif what == "part":
            await session.change(lambda *hands: boundary.part(*hands, by="late", due=lambda _: True))
        else:
            await session.change(lambda *hands: boundary.close(*hands, of=session_id))
    await store.aclose()


def main() -> int:
    folder, what, session_id = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
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
            asyncio.run(done(copy, what, session_id))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(number)
            return 0


if __name__ == "__main__":
    sys.exit(main())
