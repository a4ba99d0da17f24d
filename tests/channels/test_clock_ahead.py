"""A clock that is wrong at the first start loses nothing: the platform's own time decides what is old."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from channels.base import Pulse, Site
from channels.discord.adapter import Discord
from channels.platform_time import PlatformTime
from tests.channels.discord_place import HURRY, Record, table
from tests.channels.telegram_place import Ears, Place
from tests.support.discord_server import DiscordServer
from tests.support.telegram_server import TelegramServer

ADA = 101
AHEAD = timedelta(seconds=60)


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        running.updates.conflict_delay_s = 0.0
        yield running


@pytest.fixture
async def place(server: TelegramServer, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(server, tmp_path)
    place.began = datetime.now(UTC)
    yield place
    await place.stop()


async def ahead(place: Place, by: timedelta) -> None:
    """Let the process begin now, by a clock that is ahead."""
    place.ahead, place.began = by, datetime.now(UTC) + by
    await place.restart()


@pytest.mark.parametrize("by", [AHEAD, timedelta(days=3650), -timedelta(days=3650)])
async def test_telegrams_messages_of_the_first_minute_are_heard(
    server: TelegramServer, place: Place, by: timedelta
) -> None:
    await ahead(place, by)
    ears = Ears()
    with structlog.testing.capture_logs() as logs:
        place.run(ears)
        old = datetime.now(UTC) - timedelta(hours=1)
        for number in range(2):
            server.write(ADA, f"old {number}", date=old.timestamp())
        server.write(ADA, "new")
        await ears.until(lambda ears: "new" in ears.texts())

    assert ears.texts() == ["new"]
    skipped = [entry for entry in logs if entry["event"] == "updates.skipped_as_old"]
    assert sum(entry["count"] for entry in skipped) == 2
    assert {entry["log_level"] for entry in skipped} == {"info"}


async def test_a_first_start_that_was_kept_by_a_clock_ahead_is_corrected(
    server: TelegramServer, place: Place
) -> None:
    await place.restart()
    kept = {"4242424242": (datetime.now(UTC) + AHEAD).isoformat()}
    (place.state / "telegram.json").write_text(json.dumps({"v": 1, "first_start": kept}))
    ears = Ears()
    place.run(ears)
    server.write(ADA, "new")
    await ears.until(lambda ears: "new" in ears.texts())

    started = json.loads((place.state / "telegram.json").read_text())["first_start"]["4242424242"]
    assert datetime.fromisoformat(started) <= datetime.now(UTC)


async def test_a_bot_is_up_before_its_first_poll_ends(server: TelegramServer, tmp_path: Path) -> None:
    """A long poll in which nobody writes lasts half a minute; the bot is heard all that time."""
    place = Place(server, tmp_path, poll_timeout_s=50)
    place.run(Ears())
    await server.until_called("getUpdates")

    assert (place.pulse.up, place.pulse.failures) == (True, [])
    await place.stop()


@pytest.mark.parametrize("by", [AHEAD, timedelta(days=3650)])
async def test_discords_messages_of_the_first_minute_are_heard(tmp_path: Path, by: timedelta) -> None:
    """What came while the gateway was away is found behind a first start that the platform dates."""
    async with DiscordServer() as server:
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


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Foo 2026"])
def test_an_answer_without_a_date_tells_no_time(date: str | None) -> None:
    time = PlatformTime()
    time.note(date)

    assert time.now() is None


def test_without_a_platforms_time_the_machines_counts() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    assert Site(Path(), Pulse(), {}, began).first_start(None) == began
