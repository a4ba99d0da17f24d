"""Former texts of memory that are too old go with the daily round, in every scope."""

from __future__ import annotations

import asyncio

import pytest

from session.memory.notes import Notes
from session.memory.versions import VersionRules
from tests.session.retention_place import World

SCOPES = ("memory", "memory/chats/telegram_1", "memory/people/ada")


async def test_old_versions_go_also_where_nothing_is_written_any_more(world: World) -> None:
    """Even though no session is ever too old."""
    folders = [world.store.layout.workspace / name for name in SCOPES]
    for folder in folders:
        for text in ("one", "two", "three"):
            Notes(folder, clock=world.clock).write_memory(text)
            world.clock.forward(days=1)
    # Of each the first is older than this, and the second not.
    world.clock.forward(days=3)

    with pytest.raises(asyncio.CancelledError):
        await world.rules(days=0, versions=VersionRules(50, 7)).run()

    kept = [[one.read() for one in Notes(folder).versions.all()] for folder in folders]
    assert kept == [[], [b"two"], [b"one", b"two"]]
    assert [(folder / "MEMORY.md").read_text() for folder in folders] == ["three"] * 3
