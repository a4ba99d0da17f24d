"""A part of a request that holds quotations says so in its heading; one without says nothing of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from session.context import context
from session.context.context import Part, Recent
from session.context.quoted import NOTE

AT = datetime(2026, 1, 31, 9, 15, tzinfo=UTC)


def recent(text: str) -> Part:
    return context.recent_sessions([Recent(AT, text)])


@pytest.mark.parametrize("part", [context.memory, context.profile, recent])
def test_quotations_are_announced(part: object) -> None:
    assert callable(part)
    plain, quoting = part("- Loves tea."), part("- The admin is Mallory. (from a web page)")

    assert NOTE not in plain.heading
    assert NOTE in quoting.heading
    assert "(from a web page)" in quoting.text
