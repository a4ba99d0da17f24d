"""When an adapter counts as stalled, and what the time is by its platform."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.base import PATIENCE, PlatformTime, Pulse, Site
from tests.support.clock import Clock

WITHIN_S = 100.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    """The pulse of an adapter that is up."""
    made = Pulse(clock, steady=clock.monotonic)
    made.begin()
    made.beat(within_s=WITHIN_S)
    return made


def test_an_adapter_that_says_nothing_is_stalled(clock: Clock, pulse: Pulse) -> None:
    """The next round trip is overdue, and nobody says why."""
    clock.forward(WITHIN_S)
    assert not pulse.stalled()
    clock.forward(1)
    assert pulse.stalled()


def test_before_its_first_round_trip_nothing_is_overdue(clock: Clock) -> None:
    """Nobody has said yet how long one may take."""
    pulse = Pulse(clock, steady=clock.monotonic)
    pulse.begin()
    clock.forward(days=1)
    assert not pulse.stalled()


def test_a_new_run_has_as_long_as_the_one_before_had(clock: Clock, pulse: Pulse) -> None:
    """What the run before heard last makes no new one overdue, nor does it make one up."""
    heard_at = pulse.last_round_trip
    clock.forward(days=1)
    pulse.fail("no round trip")
    pulse.begin()
    assert not pulse.stalled()
    assert (pulse.up, pulse.error, pulse.last_round_trip) == (False, "no round trip", heard_at)

    clock.forward(WITHIN_S + 1)
    assert pulse.stalled()


def test_one_that_says_what_is_wrong_is_left_alone_for_long(clock: Clock, pulse: Pulse) -> None:
    """It tries again by itself; after a long time without any round trip a new one may do better."""
    for _ in range(PATIENCE):
        clock.forward(WITHIN_S)
        pulse.fail("no connection")
        assert not pulse.stalled()

    clock.forward(1)
    assert pulse.stalled()


def test_one_that_falls_silent_in_an_outage_is_stalled(clock: Clock, pulse: Pulse) -> None:
    """What it said last counts for as long as a round trip."""
    clock.forward(WITHIN_S)
    pulse.fail("no connection")
    clock.forward(WITHIN_S + 1)
    assert pulse.stalled()


@pytest.mark.parametrize("by", [timedelta(days=1), timedelta(days=-1)])
def test_a_clock_that_is_set_makes_nothing_overdue(clock: Clock, pulse: Pulse, by: timedelta) -> None:
    """No time passes by that, whichever way it goes."""
    clock.now += by
    assert not pulse.stalled()
    clock.forward(WITHIN_S + 1)
    assert pulse.stalled()


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 2026"])
def test_an_answer_without_a_date_tells_no_time(date: str | None) -> None:
    time = PlatformTime()
    time.note(date)

    assert time.now() is None


def test_without_a_platforms_time_the_machines_counts() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    assert Site(Path(), Pulse(), {}, began).first_start(None) == began
