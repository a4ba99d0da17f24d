"""Rolls a conversation over into a new session, in children that die at each step.

``python -m tests.session.rollover_victim DIR FIRST_KEPT``: prints how many there are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from session.store.end_for_compaction import roll_over
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.dying import die_everywhere

KEY = SessionKey("telegram:1")


def compact(archive: str, kept: int) -> Mapping[str, Any]:
    more = {"type": "compact", "previousSession": archive}
    at = "2026-03-01T10:00:00.000001+00:00"
    return make_line("system", "S", at, kind="compact", compacted_turns=2, kept=kept or None, metadata=more)


async def roll(session: Session, first_kept: int) -> str | None:
    count = len(session)
    return await session.change(
        lambda *writers: roll_over(
            *writers, first_kept=first_kept, record=compact, still=lambda now: len(now.messages) >= count
        )
    )


async def done(workspace: Path, first_kept: int) -> None:
    store = Store(workspace, zone=UTC)
    async with store.open(KEY) as session:
        await roll(session, first_kept)
    await store.aclose()


if __name__ == "__main__":
    folder, first_kept = Path(sys.argv[1]), int(sys.argv[2])
    print(die_everywhere(folder, lambda copy: done(copy, first_kept)))
