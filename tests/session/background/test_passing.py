"""A clock that leaps makes nothing old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.background.passing import Passing
from session.errors import NotNow
from tests.session.retention_place import ADA, START, World

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


def test_a_clock_that_goes_on_day_by_day_is_believed(passing: Passing) -> None:
    assert all(believed(passing, START + timedelta(days=day)) for day in range(30))


def test_a_leap_is_believed_after_a_week_in_which_the_clock_goes_on(passing: Passing) -> None:
    assert believed(passing, START)

    days = [believed(passing, START + YEARS + timedelta(days=day)) for day in range(9)]
    assert days == [False] * 7 + [True] * 2


def test_a_second_leap_begins_the_week_anew(passing: Passing) -> None:
    assert believed(passing, START)
    assert not believed(passing, START + YEARS)
    assert not believed(passing, START + 2 * YEARS)
    assert not believed(passing, START + 2 * YEARS + timedelta(days=6))


def test_a_clock_that_is_put_right_is_believed_at_once(passing: Passing) -> None:
    assert believed(passing, START)
    assert not believed(passing, START + YEARS)

    assert believed(passing, START + timedelta(days=1))
    assert not believed(passing, START + YEARS)


def test_before_the_first_look_the_files_tell_when_it_was(tmp_path: Path, passing: Passing) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "telegram_1.jsonl").touch()

    assert not believed(passing, datetime.now(UTC) + YEARS)
    assert believed(passing, datetime.now(UTC))


async def test_retention_deletes_nothing_on_the_day_of_a_leap(tmp_path: Path) -> None:
    world = World(tmp_path)
    for text in ("a", "b", "c"):
        await world.say(text)
        await world.end()
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
