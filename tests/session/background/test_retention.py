"""What is too old goes, what an open session names stays; asked first, it only says so."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.background.retention import AWAITED_S, EVERY_S, Retention
from session.store import switch_session
from session.store.store import Store
from session.store.vectors import Vectors
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line

START = datetime(2026, 1, 1, tzinfo=UTC)
ADA, BOB = SessionKey("telegram:1"), SessionKey("telegram:2")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, days: float) -> None:
        self.now += timedelta(days=days)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = Store(folder, zone=UTC, clock=self.clock)
        self.left: list[tuple[str, str]] = []
        self.naps: list[float] = []
        self.retention = Retention(self.store, days=30, left=self._left, sleep=self._sleep)

    async def _left(self, key: str, session_id: str) -> bool:
        self.left.append((key, session_id))
        JobFiles(self.store.layout.workspace / "state").keep(BackgroundJob(key, session_id))
        return True

    async def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        if len(self.naps) == 2:
            raise asyncio.CancelledError

    async def say(self, text: str, key: SessionKey = ADA, role: str = "user", **fields: Any) -> str:
        async with self.store.open(key) as session:
            at = self.clock.now.isoformat(timespec="microseconds")
            await session.append([make_line(role, text, at, **{"message_id": text, **fields})])
            await session.append(
                [make_line("assistant", "re", at, final=True, **{"message_id": text, **fields})]
            )
            return session.session_id

    async def end(self, key: SessionKey = ADA) -> None:
        async with self.store.open(key) as session:
            await session.end()

    async def sessions(self) -> dict[str, bool]:
        return {row.id: row.active for row in await self.store.rows()}

    async def pruned(self, **how: Any) -> list[tuple[str, str]]:
        return [(step.do, step.session_id) for step in await self.retention.prune(**how)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.store.aclose()


async def test_old_ended_sessions_go_but_the_one_that_an_open_session_names(world: World) -> None:
    first = await world.say("a")
    await world.end()
    second = await world.say("b")
    await world.end()
    third = await world.say("c")
    world.clock.pass_(29)
    await world.say("d")
    assert await world.pruned() == []
    world.clock.pass_(2)

    assert await world.pruned(dry_run=True) == [("delete", first)]
    assert len(await world.sessions()) == 3
    assert await world.pruned() == [("delete", first)]

    assert await world.sessions() == {second: False, third: True}
    assert await world.pruned() == []


async def test_an_archive_that_a_summary_stands_for_stays(world: World) -> None:
    """The line with which a session opens names the file of the one it continues."""
    first = await world.say("a")
    await world.end()
    [path] = world.store.layout.archive("telegram_1").iterdir()
    await world.say("b")
    await world.end()
    second = await world.say("c")
    async with world.store.open(ADA) as session:
        at = world.clock.now.isoformat()
        more = {"type": "compact", "previousSession": path.name}
        await session.append([make_line("system", "s", at, kind="compact", metadata=more)])
    world.clock.pass_(31)
    await world.say("d")

    assert await world.pruned() == []
    assert {first, second} < set(await world.sessions())


async def test_an_ended_session_waits_for_its_place_in_memory_a_week_at_most(world: World) -> None:
    """The model was away all day, or the budget used up: what nobody has noted down is not deleted."""
    ended = await world.say("a")
    await world.end()
    for _ in range(2):
        await world.say("b")
        await world.end()
    jobs, job = JobFiles(world.store.layout.workspace / "state"), BackgroundJob(ADA, ended)
    jobs.keep(job)
    world.clock.pass_(31)

    assert ("delete", ended) not in await world.pruned(dry_run=True)
    await world.pruned()
    assert ended in await world.sessions()

    [file] = (world.store.layout.workspace / "state/jobs").glob("*.json")
    week_ago = time.time() - AWAITED_S - 1
    os.utime(file, (week_ago, week_ago))
    assert ("delete", ended) in await world.pruned()


async def test_vectors_go_with_an_ended_session(world: World) -> None:
    """What is left of its texts in a derived file goes with it; other conversations keep theirs."""
    for text in ("a", "b"):
        await world.say(text)
        await world.end()
    await world.say("c")
    await world.say("d", BOB)
    vectors = Vectors(world.store.layout.workspace / "state")
    for stem in ("telegram_1", "telegram_2"):
        vectors.write("words", stem, {"a": [1.0, 0.0]})
    world.clock.pass_(days=31)

    await world.retention.prune()

    assert vectors.read("words", "telegram_1", ["a"]) == {}
    assert vectors.read("words", "telegram_2", ["a"]).keys() == {"a"}


async def test_an_active_session_that_nobody_uses_is_archived(world: World) -> None:
    """It is worked into memory and kept as an ended one; the next message begins another."""
    idle = await world.say("a")
    world.clock.pass_(20)
    used = await world.say("b", BOB)
    world.clock.pass_(11)

    assert await world.pruned(dry_run=True) == [("archive", idle)]
    assert await world.pruned() == [("archive", idle)]

    assert await world.sessions() == {idle: False, used: True}
    assert world.left == [(ADA, idle)]
    assert await world.say("c") != idle


async def test_system_messages_and_cron_keep_nothing_alive(world: World) -> None:
    """But a cron job's own conversation lives as long as the job runs."""
    idle = await world.say("a")
    job = await world.say("cron:j@1", SessionKey("cron:j"))
    world.clock.pass_(31)
    await world.say("cron:x@1")
    await world.say("cron:j@2", SessionKey("cron:j"))
    async with world.store.open(ADA) as session:
        at = world.clock.now.isoformat()
        await session.append([make_line("system", "", at, kind="note", edits="a")])

    assert await world.pruned() == [("archive", idle)]
    assert (await world.sessions())[job] is True


async def test_without_a_limit_everything_stays(world: World) -> None:
    await world.say("a")
    world.clock.pass_(10_000)
    forever = Retention(world.store, days=0, left=world._left)

    assert await forever.prune() == []
    assert len(await world.sessions()) == 1


async def test_it_runs_at_start_and_daily_and_survives_a_bad_file(world: World) -> None:
    idle = await world.say("a")
    world.store.layout.transcript("broken").write_bytes(b"\xff\0{")
    world.store.layout.transcript("dir").mkdir()
    world.clock.pass_(31)

    with pytest.raises(asyncio.CancelledError):
        await world.retention.run()

    assert world.naps == [EVERY_S, EVERY_S]
    assert (await world.sessions())[idle] is False


async def test_a_session_that_was_opened_again_is_as_fresh_as_that(world: World) -> None:
    """Who goes back to an old session is not left without it on the next day."""
    old = await world.say("a")
    await world.end()
    world.clock.pass_(20)
    async with world.store.open(ADA) as session:
        await session.change(lambda *hands: switch_session.reopen(*hands, session_id=old))
    world.clock.pass_(20)
    assert await world.pruned() == []

    world.clock.pass_(11)
    assert await world.pruned() == [("archive", old)]
