"""Slots: the same whoever computes them, right through clocks that change, made up by policy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.cron.schedule import (
    MOST_MADE_UP,
    At,
    BadSchedule,
    Every,
    Schedule,
    asked,
    cron,
    in_words,
    is_slot,
    latest,
    missed,
    newest,
    next_after,
    parse_every,
    read,
    slot_name,
)
from tests.support.examples import drawn

BERLIN = ZoneInfo("Europe/Berlin")
# Its clocks change by half an hour.
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def slots(schedule: Schedule, begin: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        following = next_after(schedule, begin)
        if following is None:
            break
        found.append(begin := following)
    return found


# -- reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1w", 604800), ("90M", 5400), ("1h 5s", 3605)],
)
def test_intervals(text: str, seconds: int) -> None:
    assert parse_every(text) == seconds * 1000


EVERY_MINUTE = {"kind": "cron", "expr": "* * * * *"}
NO_INTERVALS = ("", "5", "0s", "-5s", "1.5h", "h", "5x", "5s!", "٥s ", "9999999d")
NO_EXPRESSIONS = (
    "* * * * * *",
    "* * * *",
    "61 * * * *",
    "0 0 30 2 *",
    "@reboot",
    "a b c d e",
    "*/0 * * * *",
    "",
)
NO_EXPRESSIONS += ("0 9 * * L5", "22-4 * * * *", "H * * * *", "0 0 31 2,4 *")
WITHOUT_SLOTS: tuple[dict[str, object], ...] = (
    {},
    {"kind": ["at"]},
    {"kind": "at"},
    *({"kind": "at", "atMs": at} for at in ("soon", True, 10**30, -62_135_596_800_000, 253_402_300_799_000)),
    *({"kind": "every", "everyMs": every} for every in (0, 999, None)),
    {"kind": "cron"},
    {"kind": "cron", "expr": 5},
    *(EVERY_MINUTE | {"tz": zone} for zone in ("Mars/Olympus", "../../etc/passwd", 5)),
)
NO_WISHES: tuple[dict[str, str], ...] = (
    {},
    *(
        {"at": at}
        for at in ("2026-06-01T11:59", "tomorrow", "9999-12-31T23:59-12:00", "9999-12-31T23:59:59Z")
    ),
    {"at": "9999-12-31T12:00", "tz": "Pacific/Kiritimati"},
    {"at": "2026-06-02T09:00", "tz": "Mars/Olympus"},
    *({"at": at, "tz": "Europe/Berlin"} for at in ("2026-06-02T09:00Z", "2026-06-01T13:59")),
    {"at": "2027-01-01", "every": "1h"},
    *({"every": "1h", "tz": zone} for zone in ("UTC", "Europe/Berlin")),
    {"expr": "0 9 * * *", "tz": ""},
)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(parse_every, text) for text in NO_INTERVALS),
        *(partial(cron, expr, UTC) for expr in NO_EXPRESSIONS),
        *(partial(read, fields, anchor_ms=0, zone=UTC) for fields in WITHOUT_SLOTS),
        *(partial(asked, **wanted, zone=UTC, now=NOON) for wanted in NO_WISHES),
    ],
    ids=lambda make: f"{make.func.__name__} {make.args} {make.keywords.get('at', '')}",
)
def test_what_nobody_can_mean_has_a_cure(make: Callable[[], object]) -> None:
    with pytest.raises(BadSchedule) as caught:
        make()

    assert caught.value.hint


def test_words_and_question_marks_stand_for_fields() -> None:
    assert slots(cron("@daily", UTC), NOON, 1) == [at("2026-06-02T00:00+00:00")]
    assert slots(cron("0 9 ? * 1", UTC), NOON, 1) == [at("2026-06-08T09:00+00:00")]


def test_an_expression_without_a_zone_is_on_the_configured_clocks() -> None:
    schedule = read({"kind": "cron", "expr": "0 9 * * *", "tz": None}, anchor_ms=0, zone=BERLIN)

    assert next_after(schedule, NOON) == at("2026-06-02T09:00+02:00")


def test_what_a_person_asks_for() -> None:
    assert asked(every="2h", zone=BERLIN, now=NOON) == Every(7_200_000, NOON)
    assert asked(at="2026-06-02T09:00", zone=BERLIN, now=NOON) == At(at("2026-06-02T09:00+02:00"))
    assert asked(at="2026-06-02T09:00Z", zone=BERLIN, now=NOON) == At(at("2026-06-02T09:00+00:00"))
    assert in_words(asked(expr="0 9 * * *", zone=BERLIN, now=NOON), UTC) == "0 9 * * * Europe/Berlin"
    assert in_words(asked(every="1h30m", zone=UTC, now=NOON), UTC) == "every 1h30m"


# -- slots ---------------------------------------------------------------------------------------------


def test_an_interval_counts_from_its_anchor_whoever_asks_and_when() -> None:
    """Schedulers that start at different times name the same slots."""
    schedule = Every(5_000, NOON + timedelta(milliseconds=250))

    assert slots(schedule, NOON, 2) == [NOON + timedelta(seconds=5.25), NOON + timedelta(seconds=10.25)]
    assert next_after(schedule, NOON + timedelta(days=400)) == NOON + timedelta(days=400, seconds=0.25)
    assert next_after(schedule, NOON - timedelta(days=400)) == NOON + timedelta(seconds=5.25)


def test_names_of_slots() -> None:
    assert slot_name(at("2026-06-01T14:00+02:00")) == "2026-06-01T12:00:00Z"
    assert slot_name(NOON + timedelta(milliseconds=250)) == "2026-06-01T12:00:00.250Z"


def test_a_time_that_the_clocks_leap_over_comes_right_after_the_leap() -> None:
    """In Berlin there is no 02:30 on 29 March 2026."""
    found = slots(cron("30 2 * * *", BERLIN), at("2026-03-28T00:00+01:00"), 3)

    assert found == [at("2026-03-28T02:30+01:00"), at("2026-03-29T03:00+02:00"), at("2026-03-30T02:30+02:00")]


def test_a_time_that_comes_twice_counts_once() -> None:
    """In Berlin 25 October 2026 has two hours from 02:00 to 03:00: the first one counts."""
    found = slots(cron("30 2 * * *", BERLIN), at("2026-10-24T12:00+02:00"), 2)
    asked_in_the_second = next_after(cron("30 2 * * *", BERLIN), at("2026-10-25T02:10+01:00"))

    assert found == [at("2026-10-25T02:30+02:00"), at("2026-10-26T02:30+01:00")]
    assert asked_in_the_second == at("2026-10-26T02:30+01:00")


def test_what_runs_every_hour_runs_in_both_hours_and_not_in_the_one_that_is_missing() -> None:
    hourly = cron("0 * * * *", BERLIN)

    for begin in ("2026-10-24T22:30+00:00", "2026-03-28T22:30+00:00"):
        found = slots(hourly, at(begin), 6)
        assert {later - earlier for earlier, later in pairwise(found)} == {HOUR}


def test_two_times_that_fall_together_count_once() -> None:
    """02:00 is leapt to 03:00, which is a time of its own."""
    found = slots(cron("0 2,3 * * *", BERLIN), at("2026-03-29T00:00+01:00"), 2)

    assert found == [at("2026-03-29T03:00+02:00"), at("2026-03-30T02:00+02:00")]


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 2,3 * * *",
    "15 */3 * * *",
    "0 9 * * 1-5",
    "*/20 1-3 * * *",
    "0 0 31 * *",
    "0 0 29 2 *",
    "0 12 * * 5#2",
    "59 23 L * *",
    "0 3 1 1 *",
    "30 1 13 * 5",
]
INSTANTS = st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)).map(lambda one: one.replace(tzinfo=UTC))
SCHEDULES = st.one_of(
    st.builds(cron, st.sampled_from(EXPRESSIONS), st.sampled_from([UTC, BERLIN, LORD_HOWE])),
    st.builds(
        Every,
        st.integers(1_000, 10**9),
        st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1)).map(
            lambda one: one.replace(tzinfo=UTC, microsecond=0)
        ),
    ),
)


@drawn(300)
@given(SCHEDULES, INSTANTS)
def test_slots_only_grow_and_the_way_back_finds_the_same(schedule: Schedule, instant: datetime) -> None:
    following = next_after(schedule, instant)
    assert following is not None
    assert following > instant
    assert is_slot(schedule, following)

    assert latest(schedule, following) == following
    before = latest(schedule, following - TICK)
    assert before is None or (before <= instant and next_after(schedule, before) == following)


@drawn(100)
@given(SCHEDULES, INSTANTS, st.timedeltas(timedelta(0), timedelta(hours=30)))
def test_what_is_made_up_are_slots_between(schedule: Schedule, last: datetime, away: timedelta) -> None:
    now = last + away
    every = missed(schedule, last, now, "all")
    once = missed(schedule, last, now, "once")

    assert every == sorted(set(every))
    assert all(last < slot <= now and now - slot <= timedelta(hours=24) for slot in every)
    assert all(is_slot(schedule, slot) for slot in every[:3])
    assert once == every[-1:]
    assert len(missed(schedule, last, now, "skip")) <= 1


# -- policies ------------------------------------------------------------------------------------------


def test_policies() -> None:
    """After three hours without a scheduler: none, the newest, or all."""
    hourly = cron("0 * * * *", UTC)
    now = NOON + timedelta(minutes=10)
    last = NOON - 3 * HOUR

    assert missed(hourly, last, now, "skip") == []
    assert missed(hourly, last, now, "once") == [NOON]
    assert missed(hourly, last, now, "all") == [NOON - 2 * HOUR, NOON - HOUR, NOON]


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_a_slot_that_is_kept_runs_whatever_the_policy(policy: str) -> None:
    late = NOON + timedelta(seconds=2)

    assert missed(cron("0 * * * *", UTC), NOON - HOUR, late, policy) == [NOON]  # type: ignore[arg-type]
    assert missed(At(NOON), NOON - HOUR, late, policy) == [NOON]  # type: ignore[arg-type]


def test_nothing_is_made_up_after_a_day() -> None:
    # NOON is a Monday.
    weekly = cron("0 12 * * 1", UTC)
    last = NOON - timedelta(days=1)

    assert missed(weekly, last, NOON + timedelta(hours=23), "once") == [NOON]
    assert missed(weekly, last, NOON + timedelta(hours=25), "once") == []
    assert missed(At(NOON), last, NOON + timedelta(hours=25), "all") == []
    assert newest(weekly, NOON, NOON + timedelta(days=20)) == NOON + timedelta(days=14)


def test_there_is_a_most_of_what_is_made_up() -> None:
    found = missed(Every(1_000, NOON), NOON, NOON + 5 * HOUR, "all")

    assert len(found) == MOST_MADE_UP
    assert found[-1] == NOON + 5 * HOUR


def test_a_clock_that_was_set_back_names_no_slot_again() -> None:
    hourly = cron("0 * * * *", UTC)

    assert missed(hourly, NOON, NOON - timedelta(minutes=30), "all") == []
    assert missed(hourly, NOON, NOON, "all") == []
