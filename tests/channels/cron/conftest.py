"""The workspace with a clock of its own that each test of cron has for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.channels.cron.cron_place import Place


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
