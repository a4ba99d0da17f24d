"""The local Telegram, and the adapter in front of it, that each test has for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.channels.telegram.telegram_place import Place
from tests.support.telegram_server import TelegramServer


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        running.updates.conflict_delay_s = 0.0
        yield running


@pytest.fixture
async def place(server: TelegramServer, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(server, tmp_path)
    yield place
    await place.stop()
