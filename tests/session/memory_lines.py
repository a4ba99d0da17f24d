"""Lines that tests of the memory are made of."""

from __future__ import annotations

import re
from typing import Any

from session.transcript.line import make_line

MARK = re.compile(r"<!-- session ([0-9A-Z]{26}) messages (\d+)-(\d+) [0-9a-f]{8} -->")


def user(text: str = "hello") -> dict[str, Any]:
    return make_line("user", text, "2026-01-31T09:00:00")
