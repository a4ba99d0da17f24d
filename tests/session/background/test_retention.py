"""What is too old goes, what an open session names stays; asked first, it only says so."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from session.background import retention
from session.background.job_files import BackgroundJob
from session.background.passing import Passing
from session.background.retention import AWAITED_S, EVERY_S
from session.errors import NotNow, StoreError
from session.memory.notes import Notes, VersionRules
from session.store import rollover
from session.store.derived import Vectors
from session.transcript import archive
from session.transcript.key import SessionKey
from session.transcript.loading import load
from session.transcript.transcript import make_line
from tests.session.retention_place import ADA, BOB, START, World
from tests.session.store_place import keep


async def test_old_ended_sessions_go_the_newest_of_an_open_chat_as_well(world: World) -> None:
    first = await world.ended("a")
    second = await world.ended("b")
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


async def test_a_fresh_process_leaves_no_word_of_what_it_deletes(world: World, tmp_path: Path) -> None:
    """Neither in the archive nor in a byte of the state database, whose journal held the answers."""
    await world.say("a", answer="swordfish")
    await world.end()
    await world.store.aclose()
    world.clock.forward(days=31)
    later = World(tmp_path)
    later.clock.forward(days=31)

    assert [do for do, _ in await later.pruned()] == ["delete"]

    await later.store.aclose()
    assert [path for path in tmp_path.rglob("*.*") if b"swordfish" in path.read_bytes()] == []


async def test_an_archive_that_a_summary_stands_for_stays(world: World) -> None:
    """The line with which a session opens names the file of the one it continues."""
    first = await world.ended("a")
    [path] = world.store.layout.archive("telegram_1").iterdir()
    between = await world.ended("b")
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
    ended = await world.ended("a")
    for _ in range(2):
        await world.ended("b")
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
        await world.ended(text)
    await world.say("c")
    await world.say("d", BOB)
    vectors = Vectors(world.store.layout.workspace / "state")
    for stem in ("telegram_1", "telegram_2"):
        keep(vectors, "words", stem, {"a": [1.0, 0.0]})
    world.clock.forward(days=31)

    await world.retention.prune()

    assert vectors.read("words", "telegram_1", ["a"]) == {}
    assert vectors.read("words", "telegram_2", ["a"]).keys() == {"a"}


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


@pytest.mark.parametrize("days", [999_999, 0])
async def test_with_no_limit_or_one_of_thousands_of_years_everything_stays(world: World, days: int) -> None:
    await world.ended("a")
    await world.say("b")
    world.clock.forward(days=10_000)

    assert await world.rules(days=days).prune() == []
    assert len(await world.sessions()) == 2


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
    old = await world.ended("a")
    world.clock.forward(days=20)
    async with world.store.open(ADA) as session:
        await session.change(lambda *writers: rollover.reopen(*writers, session_id=old))
    world.clock.forward(days=20)
    assert await world.pruned() == []

    world.clock.forward(days=11)
    assert await world.pruned() == [("archive", old)]


def archived(world: World) -> dict[str, datetime]:
    return {found.session_id: found.ended_at for found in archive.everywhere(world.store.layout)}


async def test_it_ended_with_its_last_message_and_goes_once_memory_has_it(world: World) -> None:
    """What memory owes is taken in first; the pass after that deletes it, and no thirty days later."""
    idle = await world.say("a")
    world.clock.forward(days=20)
    used = await world.say("b", BOB)
    world.clock.forward(days=11)

    assert await world.pruned(dry_run=True) == [("archive", idle)]
    assert await world.pruned() == [("archive", idle)]

    assert (archived(world), world.left) == ({idle: START}, [(ADA, idle)])
    assert await world.sessions() == {idle: False, used: True}
    [row] = [row for row in await world.store.rows() if row.id == idle]
    assert row.last_message_at == "2026-01-01T00:00:00.000000+00:00"
    await world.take_in(idle)
    assert await world.pruned() == [("delete", idle)]
    assert archived(world) == {}
    assert await world.say("c") != idle


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


class Killed(BaseException):
    """The process is gone."""


def failing(world: World, error: BaseException) -> None:
    async def left(key: str, session_id: str) -> bool:
        raise error

    world.retention._left = left


@pytest.mark.parametrize("error", [StoreError("disk full"), Killed()])
async def test_a_disk_or_a_kill_between_the_archive_and_its_job_costs_no_conversation(
    world: World, error: BaseException
) -> None:
    """It stays in this round and, while the disk is full, in all others; then memory is asked for it."""
    idle = await world.say("a")
    world.clock.forward(days=31)
    failing(world, error)

    for _ in range(2):
        with suppress(Killed):
            assert await world.pruned() == []
        assert await world.sessions() == {idle: False}

    world.retention = world.rules()
    assert await world.pruned(dry_run=True) == []
    assert world.left == []
    assert await world.pruned() == []
    assert world.left == [(ADA, idle)]
    assert world.jobs.holds(BackgroundJob(ADA, idle))
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


async def test_where_nothing_remembers_what_is_owed_goes_at_once(world: World) -> None:
    world.retention = world.rules(remembers=False)
    ended = [await world.ended(text, owed=True) for text in ("a", "b")]
    await world.say("c")
    world.clock.forward(days=31)
    await world.say("d")

    assert await world.pruned() == [("delete", each) for each in ended]
    assert world.left == []


def unreadable(monkeypatch: pytest.MonkeyPatch, *barred: Path) -> None:
    """Let the disk refuse these files, as with too many of them open."""

    def refusing(path: Path, stem: str, *more: Any) -> Any:
        if path in barred:
            raise StoreError(f"{path.name} cannot be read: Too many open files")
        return load(path, stem, *more)

    monkeypatch.setattr(retention, "load", refusing)


async def ended_thrice(world: World) -> list[str]:
    """Have Ada end two sessions and Bob two, each with an open one behind, and grow all of them old."""
    said = []
    for key in (ADA, BOB):
        said += [await world.ended(text, key) for text in ("a", "b")]
        await world.say("c", key)
    world.clock.forward(days=31)
    for key in (ADA, BOB):
        await world.say("d", key)
    return said


@pytest.mark.parametrize("dry_run", [True, False])
async def test_while_an_open_session_cannot_be_read_none_of_its_chat_goes(
    world: World, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    """It may name any of them; other chats are looked after all the same."""
    ada_s, _, *bobs = await ended_thrice(world)
    unreadable(monkeypatch, world.store.layout.transcript("telegram_1"))

    assert await world.pruned(dry_run=dry_run) == [("delete", each) for each in bobs]

    monkeypatch.undo()
    assert ("delete", ada_s) in await world.pruned(dry_run=dry_run)


async def test_an_open_session_that_turns_unreadable_before_the_deletion_keeps_its_archives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended_thrice(world)
    before = await world.sessions()
    named, asked = retention.Retention._named, list[str]()

    def later(self: retention.Retention, stem: str) -> frozenset[str]:
        asked.append(stem)
        if asked.count(stem) > 1:
            unreadable(monkeypatch, world.store.layout.transcript(stem))
        return named(self, stem)

    monkeypatch.setattr(retention.Retention, "_named", later)

    assert await world.pruned() == []
    monkeypatch.undo()
    assert await world.sessions() == before


async def test_an_archive_that_cannot_be_read_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose it is, and so whether memory still waits for it, stands in it."""
    ada_s, *others = await ended_thrice(world)
    world.jobs.keep(BackgroundJob(ADA, ada_s))
    barred = [path for path in world.store.layout.archive("telegram_1").iterdir() if ada_s in path.name]
    unreadable(monkeypatch, *barred)

    assert await world.pruned() == [("delete", each) for each in others]
    assert ada_s in await world.sessions()


async def test_where_nobody_can_say_whether_there_is_a_job_the_session_stays(world: World) -> None:
    await ended_thrice(world)
    jobs = world.store.layout.workspace / "state/jobs"
    for path in jobs.glob("*"):
        path.unlink()
    if jobs.is_dir():
        jobs.rmdir()
    jobs.symlink_to(jobs.name)

    assert await world.pruned() == []


async def test_a_link_to_itself_among_the_transcripts_holds_up_nothing(world: World) -> None:
    ended = await ended_thrice(world)
    loop = world.store.layout.transcript("loop")
    loop.symlink_to(loop.name)

    assert await world.pruned() == [("delete", each) for each in ended]


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


YEARS = timedelta(days=3650)


def believed(passing: Passing, now: datetime) -> bool:
    try:
        passing.believe(now)
    except NotNow:
        return False
    return True


@pytest.fixture
def passing(tmp_path: Path) -> Passing:
    return Passing(tmp_path / "state" / "retention.json", tmp_path / "sessions")


@pytest.mark.parametrize(
    "looks",
    [
        [(timedelta(days=day), True) for day in range(30)],
        # A leap is believed after a week in which the clock goes on; a second one begins the week again.
        [(timedelta(), True), *((YEARS + timedelta(days=day), day >= 7) for day in range(9))],
        [(timedelta(), True), (YEARS, False), (2 * YEARS, False), (2 * YEARS + timedelta(days=6), False)],
        [(timedelta(), True), (YEARS, False), (timedelta(days=1), True), (YEARS, False)],
    ],
    ids=["day by day", "a leap", "a second leap", "put right"],
)
def test_a_clock_is_believed_that_goes_on(passing: Passing, looks: list[tuple[timedelta, bool]]) -> None:
    assert [believed(passing, START + after) for after, _ in looks] == [yes for _, yes in looks]


def test_before_the_first_look_the_files_tell_when_it_was(tmp_path: Path, passing: Passing) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "telegram_1.jsonl").touch()

    assert not believed(passing, datetime.now(UTC) + YEARS)
    assert believed(passing, datetime.now(UTC))


async def test_retention_deletes_nothing_on_the_day_of_a_leap(tmp_path: Path) -> None:
    world = World(tmp_path)
    for text in ("a", "b", "c"):
        await world.ended(text)
    await world.say("d", ADA)
    passing = Passing(tmp_path / "state" / "retention.json", tmp_path / "sessions")
    retention = world.rules(passing=passing)
    assert await retention.prune() == []
    world.clock.forward(days=3650)

    for dry_run in (True, False):
        with pytest.raises(NotNow, match="3650 days later") as told:
            await retention.prune(dry_run=dry_run)
        assert "check the clock" in told.value.hint
    assert len(await world.sessions()) == 4
    await world.store.aclose()
