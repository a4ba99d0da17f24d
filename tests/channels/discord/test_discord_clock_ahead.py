"""A clock that is wrong at the first start loses nothing: Discord's own time decides what is old."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from channels.base import Pulse, Site
from channels.discord.adapter import Discord
from channels.discord.cursors import Cursors
from channels.discord.messages import snowflake_at
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
    try:
        await server.called("GET", "/gateway/bot")
        server.write(server.dm("ada"), "in the gap")
        server.gateway.refuse = ""
        await record.count(1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channel.aclose()

    assert record.texts() == ["in the gap"]


@pytest.mark.parametrize("by", [timedelta(seconds=60), timedelta(days=3650)])
async def test_a_first_start_that_was_kept_by_a_clock_ahead_is_corrected(
    tmp_path: Path, by: timedelta
) -> None:
    """Channels are read from now on, not from a time that is yet to come; the file says so, too."""
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    kept = {"first_start": (now + by).isoformat(), "swept_at": None}
    (tmp_path / "discord.json").write_bytes(orjson.dumps({"v": 1, "bots": {"1": kept}}))

    cursors = await Cursors.open(tmp_path, "1", lambda: now)

    assert cursors.start("10") <= snowflake_at(now)
    again = await Cursors.open(tmp_path, "1", lambda: now + 2 * by)
    assert again.start("10") <= snowflake_at(now)
