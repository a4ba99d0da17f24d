"""What is too old goes, what an open session names stays; asked first, it only says so."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from session.background.job_files import BackgroundJob
from session.background.retention import AWAITED_S, EVERY_S
from session.store import switch_session
from session.store.vectors import Vectors
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.retention_place import ADA, BOB, World


async def test_old_ended_sessions_go_the_newest_of_an_open_chat_as_well(world: World) -> None:
    first = await world.say("a")
    await world.end()
    second = await world.say("b")
    await world.end()
    third = await world.say("c")
    world.clock.forward(days=29)
    await world.say("d")
    assert await world.pruned() == []
    world.clock.forward(days=2)

    assert await world.pruned(dry_run=True) == [("delete", first), ("delete", second)]
    assert len(await world.sessions()) == 3
    assert await world.pruned() == [("delete", first), ("delete", second)]

    assert await world.sessions() == {third: True}
    assert await world.pruned() == []


async def test_an_archive_that_a_summary_stands_for_stays(world: World) -> None:
    """The line with which a session opens names the file of the one it continues."""
    first = await world.say("a")
    await world.end()
    [path] = world.store.layout.archive("telegram_1").iterdir()
    between = await world.say("b")
    await world.end()
    second = await world.say("c")
    async with world.store.open(ADA) as session:
        at = world.clock.now.isoformat()
        more = {"type": "compact", "previousSession": path.name}
        await session.append([make_line("system", "s", at, kind="compact", metadata=more)])
    world.clock.forward(days=31)
    await world.say("d")

    assert await world.pruned() == [("delete", between)]
    assert set(await world.sessions()) >= {first, second}


async def test_an_ended_session_waits_for_its_place_in_memory_a_week_at_most(world: World) -> None:
    """The model was away all day, or the budget used up: what nobody has noted down is not deleted."""
    ended = await world.say("a")
    await world.end()
    for _ in range(2):
        await world.say("b")
        await world.end()
    world.jobs.keep(BackgroundJob(ADA, ended))
    world.clock.forward(days=31)

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
    world.clock.forward(days=31)

    await world.retention.prune()

    assert vectors.read("words", "telegram_1", ["a"]) == {}
    assert vectors.read("words", "telegram_2", ["a"]).keys() == {"a"}


async def test_an_active_session_that_nobody_uses_is_archived(world: World) -> None:
    """It is worked into memory and kept as an ended one; the next message begins another."""
    idle = await world.say("a")
    world.clock.forward(days=20)
    used = await world.say("b", BOB)
    world.clock.forward(days=11)

    assert await world.pruned(dry_run=True) == [("archive", idle)]
    assert await world.pruned() == [("archive", idle)]

    assert await world.sessions() == {idle: False, used: True}
    assert world.left == [(ADA, idle)]
    assert await world.say("c") != idle


async def test_system_messages_and_cron_keep_nothing_alive(world: World) -> None:
    """But a cron job's own conversation lives as long as the job runs."""
    idle = await world.say("a")
    job = await world.say("cron:j@1", SessionKey("cron:j"))
    world.clock.forward(days=31)
    await world.say("cron:x@1")
    await world.say("cron:j@2", SessionKey("cron:j"))
    await world.note()

    assert await world.pruned() == [("archive", idle)]
    assert (await world.sessions())[job] is True


async def test_a_limit_of_thousands_of_years_keeps_everything(world: World) -> None:
    await world.say("a")
    await world.end()
    await world.say("b")
    world.clock.forward(days=10_000)

    assert await world.rules(days=999_999).prune() == []
    assert len(await world.sessions()) == 2


async def test_without_a_limit_everything_stays(world: World) -> None:
    await world.say("a")
    world.clock.forward(days=10_000)
    forever = world.rules(days=0)

    assert await forever.prune() == []
    assert len(await world.sessions()) == 1


async def test_it_runs_at_start_and_daily_and_survives_a_bad_file(world: World) -> None:
    idle = await world.say("a")
    world.store.layout.transcript("broken").write_bytes(b"\xff\0{")
    world.store.layout.transcript("dir").mkdir()
    world.clock.forward(days=31)

    with pytest.raises(asyncio.CancelledError):
        await world.retention.run()

    assert world.naps == [EVERY_S, EVERY_S]
    assert (await world.sessions())[idle] is False


async def test_a_session_that_was_opened_again_is_as_fresh_as_that(world: World) -> None:
    """Who goes back to an old session is not left without it on the next day."""
    old = await world.say("a")
    await world.end()
    world.clock.forward(days=20)
    async with world.store.open(ADA) as session:
        await session.change(lambda *writers: switch_session.reopen(*writers, session_id=old))
    world.clock.forward(days=20)
    assert await world.pruned() == []

    world.clock.forward(days=11)
    assert await world.pruned() == [("archive", old)]
