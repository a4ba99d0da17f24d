"""Clears a conversation, in children that die at each step.

``python -m tests.session.clearing_victim DIR lines|everything``: prints how many there are.
"""

from __future__ import annotations

import sys
from datetime import UTC
from pathlib import Path

from session.store.store import Store
from tests.session.dying import die_everywhere
from tests.session.store_place import ADA


async def done(workspace: Path, what: str) -> None:
    store = Store(workspace, zone=UTC)
    await store.clear(ADA, ids=["running"], everything=what == "everything")
    await store.aclose()


if __name__ == "__main__":
    folder, what = Path(sys.argv[1]), sys.argv[2]
    print(die_everywhere(folder, lambda copy: done(copy, what)))
