"""The local Discord that each test of the adapter has for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route

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
def channel(general: Channel) -> Channel:
    """The same one, as the tests of the local Discord itself call it."""
    return general


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def addresses() -> Iterator[None]:
    """Put back both addresses of discord.py: they are of the whole process."""
    base, gateway = Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY
    yield
    Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY = base, gateway
