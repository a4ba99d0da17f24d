"""The time that a platform tells, and what counts where it tells none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.base import Pulse, Site
from channels.platform_time import PlatformTime


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 2026"])
def test_an_answer_without_a_date_tells_no_time(date: str | None) -> None:
    time = PlatformTime()
    time.note(date)

    assert time.now() is None


def test_without_a_platforms_time_the_machines_counts() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    assert Site(Path(), Pulse(), {}, began).first_start(None) == began
