"""A workspace with a memory, as most tests of the memory open it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.session.memory_place import Workspace, open_workspace


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Workspace]:
    async with open_workspace(tmp_path) as opened:
        yield opened


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[Workspace]:
    """Its background works."""
    async with open_workspace(tmp_path, run=True) as opened:
        yield opened
