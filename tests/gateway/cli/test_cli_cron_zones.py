"""Times of cron jobs: a date on the clocks of a named zone, and lists that say whose clocks they show."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from channels.cron.schedule import At, asked, in_words
from tests.gateway.cli.test_cli_cron import LATER, Ran

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def test_a_date_is_on_the_clocks_of_the_zone_that_is_named(tmp_path: Path) -> None:
    row: Any = Ran(
        tmp_path, "add", "--at", LATER, "--tz", "Asia/Tokyo", "--message", "m", "--json", zone="Europe/Berlin"
    ).json

    assert row["next_run_at"] == f"{LATER[:4]}-01-01T00:00:00Z"
    assert asked(at="2026-06-02T09:00", tz="Europe/Berlin", zone=UTC, now=NOON) == At(
        datetime(2026, 6, 2, 7, tzinfo=UTC)
    )


def test_a_list_says_whose_clocks_its_times_are(tmp_path: Path) -> None:
    added = Ran(tmp_path, "add", "--at", LATER, "--tz", "Asia/Tokyo", "--message", "m", zone="Asia/Tokyo")
    here = Ran(tmp_path, "list", zone="Asia/Tokyo")
    there = Ran(tmp_path, "list", zone="UTC")

    day = LATER[:10]
    assert f"at {day} 09:00 JST, next run {day} 09:00:00 JST" in added.err
    assert f"at {day} 09:00 JST" in here.out
    assert f"{day} 09:00:00 JST" in here.out
    assert f"at {day} 00:00 UTC" in there.out
    assert f"{day} 00:00:00 UTC" in there.out


def test_the_words_of_a_date_name_summer_and_winter() -> None:
    summer = asked(at="2026-07-01T09:00", tz="Europe/Berlin", zone=UTC, now=NOON)
    winter = asked(at="2026-12-01T09:00:30", tz="Europe/Berlin", zone=UTC, now=NOON)

    assert in_words(summer, BERLIN) == "at 2026-07-01 09:00 CEST"
    assert in_words(winter, BERLIN) == "at 2026-12-01 09:00:30 CET"
