"""A workspace with one ended session and an active one, and what a check of all that is kept finds in it."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

from session.kept.checking import verify
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.session.store_place import talk

KEY = SessionKey("web:a")


async def talked(workspace: Path) -> None:
    """Have one ended session and an active one."""
    store = Store(workspace, zone=UTC)
    async with store.open(KEY) as session:
        await talk(session, "hello")
        await session.end()
        await talk(session, "again")
    await store.aclose()


async def verified(workspace: Path, *, repair: bool = False) -> list[dict[str, Any]]:
    """Check all that is kept; return the rows of what is damaged."""
    store = Store(workspace, zone=UTC)
    try:
        return await verify(store, repair=repair)
    finally:
        await store.aclose()
