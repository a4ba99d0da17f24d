"""Changes a conversation in children that die at each step: ``… DIR TASK [WHAT]``; prints how many there are.

TASK is a name in ``TASKS``; WHAT is the ULID of a session, or the place of the first line that is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path

from session.background.moving import move
from session.store import rollover
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.session.dying import die_everywhere
from tests.session.store_place import ADA, part, reopen, roll

OLD, NEW = SessionKey("telegram:-5"), SessionKey("telegram:-1005")


async def _close(store: Store, session_id: str) -> None:
    async with store.open(ADA) as session:
        await session.change(lambda *writers: rollover.close(*writers, of=session_id))


async def _roll(store: Store, first_kept: str) -> None:
    async with store.open(ADA) as session:
        await roll(session, int(first_kept))


TASKS: dict[str, Callable[[Store, str], Awaitable[object]]] = {
    "reopen": lambda store, session_id: reopen(store, session_id, by="cmd"),
    "part": lambda store, _: part(store),
    "close": _close,
    "roll": _roll,
    "lines": lambda store, _: store.clear(ADA, ids=["running"]),
    "everything": lambda store, _: store.clear(ADA, ids=["running"], everything=True),
    "move": lambda store, _: move(store, OLD, NEW),
}


async def done(workspace: Path, task: str, what: str) -> None:
    store = Store(workspace, zone=UTC)
    await TASKS[task](store, what)
    await store.aclose()


if __name__ == "__main__":
    folder, task, what = Path(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])
    print(die_everywhere(folder, lambda copy: done(copy, task, what)))
