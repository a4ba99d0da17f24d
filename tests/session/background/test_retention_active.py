"""What becomes of an active session that nobody uses: it ended with its last message."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from session.transcript import archive
from tests.session.retention_place import START, World


def archived(world: World) -> dict[str, datetime]:
    return {found.session_id: found.ended_at for found in archive.everywhere(world.store.layout)}


async def test_it_ended_with_its_last_message_and_goes_once_memory_has_it(world: World) -> None:
    """What memory owes is taken in first; the pass after that deletes it, and no thirty days later."""
    idle = await world.say("a")
    world.clock.forward(days=31)

    assert await world.pruned(dry_run=True) == [("archive", idle)]
    assert await world.pruned() == [("archive", idle)]

    assert archived(world) == {idle: START}
    [row] = await world.store.rows()
    assert (row.id, row.active, row.last_message_at) == (idle, False, "2026-01-01T00:00:00.000000+00:00")
    await world.take_in(idle)
    assert await world.pruned() == [("delete", idle)]
    assert archived(world) == {}


@pytest.mark.parametrize("dry_run", [False, True])
async def test_without_a_model_that_remembers_it_is_deleted_in_the_same_pass(
    world: World, dry_run: bool
) -> None:
    world.retention = world.rules(remembers=False)
    idle = await world.say("a")
    world.clock.forward(days=31)

    assert await world.pruned(dry_run=dry_run) == [("archive", idle), ("delete", idle)]

    assert len(await world.store.rows()) == dry_run


async def test_what_cron_said_last_is_the_end_of_it(world: World) -> None:
    """It kept nothing alive, but the session is as old as that, and not older."""
    world.retention = world.rules(remembers=False)
    idle = await world.say("a")
    world.clock.forward(days=20)
    await world.say("cron:x@1")
    world.clock.forward(days=11)
    await world.note()

    assert await world.pruned() == [("archive", idle)]

    assert archived(world) == {idle: START + timedelta(days=20)}
    world.clock.forward(days=20)
    assert await world.pruned() == [("delete", idle)]
