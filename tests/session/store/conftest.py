"""What the tests of the store share: stores that are closed when their test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.store.store import Store
from tests.session.store_place import Make


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Store] = []

    def open_store(**options: Any) -> Store:
        made.append(Store(options.pop("workspace", tmp_path), zone=UTC, **options))
        return made[-1]

    yield open_store
    for store in made:
        await store.aclose()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(tmp_path / "w", zone=UTC)
    yield opened
    await opened.aclose()
