"""Moves a conversation in children that die at each step: ``python -m tests.session.moving_victim DIR``.

Prints how many there are.
"""

from __future__ import annotations

import sys
from datetime import UTC
from pathlib import Path

from session.background.moving import move
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.support.dying import die_everywhere

OLD, NEW = SessionKey("telegram:-5"), SessionKey("telegram:-1005")


async def moved(workspace: Path) -> None:
    store = Store(workspace, zone=UTC)
    await move(store, OLD, NEW)
    await store.aclose()


if __name__ == "__main__":
    print(die_everywhere(Path(sys.argv[1]), moved))
