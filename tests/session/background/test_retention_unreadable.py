"""What cannot be read just now protects what it names, and is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from session.background import retention
from session.background.job_files import BackgroundJob
from session.errors import StoreError
from session.transcript.loading import load
from tests.session.retention_place import ADA, BOB, World


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
        for text in ("a", "b"):
            said.append(await world.say(text, key))
            await world.end(key)
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
