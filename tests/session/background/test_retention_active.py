"""What becomes of an active session that nobody uses: it ended with its last message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.background.retention import Retention
from session.store.store import Store
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line

START = datetime(2026, 1, 1, tzinfo=UTC)
ADA = SessionKey("telegram:1")


class World:
    def __init__(self, folder: Path) -> None:
        self.now = START
        self.store = Store(folder, zone=UTC, clock=lambda: self.now)
        self.jobs = JobFiles(self.store.layout.workspace / "state")
        self.retention = self.rules()

    def rules(self, *, remembers: bool = True) -> Retention:
        return Retention(self.store, days=30, left=self._left, remembers=remembers)

    async def _left(self, key: str, session_id: str) -> bool:
        self.jobs.keep(BackgroundJob(key, session_id))
        return True

    async def say(self, id_: str) -> str:
        async with self.store.open(ADA) as session:
            at = self.now.isoformat(timespec="microseconds")
            await session.append([make_line("user", "hi", at, message_id=id_)])
            await session.append([make_line("assistant", "re", at, message_id=id_, final=True)])
            return session.session_id

    def pass_(self, days: float) -> None:
        self.now += timedelta(days=days)

    async def pruned(self, *, dry_run: bool = False) -> list[tuple[str, str]]:
        return [(step.do, step.session_id) for step in await self.retention.prune(dry_run=dry_run)]

    def archived(self) -> dict[str, datetime]:
        return {found.session_id: found.ended_at for found in archive.everywhere(self.store.layout)}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.aclose()


async def test_it_ended_with_its_last_message_and_goes_once_memory_has_it(world: World) -> None:
    """What memory owes is taken in first; the pass after that deletes it, and no thirty days later."""
    idle = await world.say("a")
    world.pass_(31)

    assert await world.pruned(dry_run=True) == [("archive", idle)]
    assert await world.pruned() == [("archive", idle)]

    assert world.archived() == {idle: START}
    [row] = await world.store.rows()
    assert (row.id, row.active, row.last_message_at) == (idle, False, "2026-01-01T00:00:00.000000+00:00")
    world.jobs.strike(BackgroundJob(ADA, idle))
    assert await world.pruned() == [("delete", idle)]
    assert world.archived() == {}


@pytest.mark.parametrize("dry_run", [False, True])
async def test_without_a_model_that_remembers_it_is_deleted_in_the_same_pass(
    world: World, dry_run: bool
) -> None:
    world.retention = world.rules(remembers=False)
    idle = await world.say("a")
    world.pass_(31)

    assert await world.pruned(dry_run=dry_run) == [("archive", idle), ("delete", idle)]

    assert len(await world.store.rows()) == dry_run


async def test_what_cron_said_last_is_the_end_of_it(world: World) -> None:
    """It kept nothing alive, but the session is as old as that, and not older."""
    world.retention = world.rules(remembers=False)
    idle = await world.say("a")
    world.pass_(20)
    await world.say("cron:x@1")
    async with world.store.open(ADA) as session:
        world.pass_(11)
        note = make_line("system", "", world.now.isoformat(), kind="note", edits="a")
        await session.append([note])

    assert await world.pruned() == [("archive", idle)]

    assert world.archived() == {idle: START + timedelta(days=20)}
    world.pass_(20)
    assert await world.pruned() == [("delete", idle)]
