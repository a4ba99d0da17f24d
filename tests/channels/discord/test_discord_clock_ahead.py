"""A clock that is wrong at the first start loses nothing: Discord's own time decides what is old."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.base import Pulse, Site
from channels.discord.adapter import Discord
from tests.channels.discord.discord_place import HURRY, Record, table
from tests.support.discord_server import DiscordServer


@pytest.mark.parametrize("by", [timedelta(seconds=60), timedelta(days=3650)])
async def test_discords_messages_of_the_first_minute_are_heard(
    server: DiscordServer, tmp_path: Path, by: timedelta
) -> None:
    """What came while the gateway was away is found behind a first start that the platform dates."""
    record, ada = Record(), server.user("ada").id
    site = Site(tmp_path, Pulse(), {}, datetime.now(UTC) + by)
    channel = Discord(table(server, allow_from=(ada,)), site, tempo=HURRY)
    server.gateway.refuse = "reset"
    running = asyncio.create_task(channel.run(record.emit))
    await server.called("GET", "/gateway/bot")
    server.write(server.dm("ada"), "in the gap")
    server.gateway.refuse = ""
    await record.count(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await channel.aclose()

    assert record.texts() == ["in the gap"]
