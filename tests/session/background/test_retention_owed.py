"""What memory has not taken in is not deleted, whatever went wrong when it ended."""

from __future__ import annotations

import pytest

from session.background.job_files import BackgroundJob
from session.errors import StoreError
from tests.session.retention_place import ADA, World


class Killed(BaseException):
    """The process is gone."""


def failing(world: World, error: BaseException) -> None:
    async def left(key: str, session_id: str) -> bool:
        raise error

    world.retention._left = left


async def test_a_full_disk_between_the_archive_and_its_job_costs_no_conversation(world: World) -> None:
    """It stays in this round and, while the disk is full, in all others; then memory is asked for it."""
    idle = await world.say("a")
    world.clock.forward(days=31)
    failing(world, StoreError("disk full"))

    assert await world.pruned() == []
    assert await world.sessions() == {idle: False}
    assert await world.pruned() == []
    assert await world.sessions() == {idle: False}

    world.retention = world.rules()
    assert await world.pruned(dry_run=True) == []
    assert world.left == []
    assert await world.pruned() == []
    assert world.left == [(ADA, idle)]
    await world.take_in(idle)
    assert await world.pruned() == [("delete", idle)]


async def test_what_could_not_be_archived_is_not_deleted_in_the_same_round(world: World) -> None:
    """Also where no job is missing, since nobody knows how far it came."""
    world.retention = world.rules(remembers=False)
    idle = await world.say("a")
    world.clock.forward(days=31)
    failing(world, StoreError("disk full"))

    assert await world.pruned() == []
    assert await world.sessions() == {idle: False}


async def test_a_process_killed_between_the_archive_and_its_job_costs_no_conversation(world: World) -> None:
    idle = await world.say("a")
    world.clock.forward(days=31)
    failing(world, Killed())
    with pytest.raises(Killed):
        await world.pruned()
    assert await world.sessions() == {idle: False}

    world.retention = world.rules()

    assert await world.pruned() == []
    assert (await world.sessions(), world.left) == ({idle: False}, [(ADA, idle)])
    assert world.jobs.holds(BackgroundJob(ADA, idle))
    await world.take_in(idle)
    assert await world.pruned() == [("delete", idle)]


async def test_where_nothing_remembers_what_is_owed_goes_at_once(world: World) -> None:
    world.retention = world.rules(remembers=False)
    ended = []
    for text in ("a", "b"):
        ended.append(await world.say(text))
        await world.end(owed=True)
    await world.say("c")
    world.clock.forward(days=31)
    await world.say("d")

    assert await world.pruned() == [("delete", each) for each in ended]
    assert world.left == []
