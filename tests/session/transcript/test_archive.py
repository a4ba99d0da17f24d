"""How the archives of ended sessions are named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from session.transcript.archive import name_behind, name_of, read_name


def test_a_session_is_named_behind_those_that_ended_before_whatever_a_wrong_clock_named() -> None:
    """One that ended under a clock a day ahead hides none of those that ended within this second."""
    now = datetime(2026, 1, 1, 9, 0, 0, 400_000, UTC)
    first, second, ahead = "01KDWX1Z00" + "B" * 16, "01KDWX1Z00" + "A" * 16, "01KDZ1R000" + "Z" * 16
    names = [name_of(now, first), name_of(now + timedelta(days=1), ahead)]
    others = [found for name in names if (found := read_name(Path("chat") / name)) is not None]

    assert name_behind(now, second, others) == name_of(now + timedelta(seconds=1), second)
    assert name_behind(now, second, others[1:]) == name_of(now, second)
