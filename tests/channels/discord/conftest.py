"""The local Discord that each test of the adapter has for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as server:
        yield server


@pytest.fixture
def general(server: DiscordServer) -> Channel:
    return server.channel(server.guild("home"), "general")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"
