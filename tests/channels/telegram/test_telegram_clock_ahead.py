"""A clock that is wrong at the first start loses nothing: Telegram's own time decides what is old."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from tests.channels.telegram.telegram_place import ADA, Ears, Place
from tests.support.telegram_server import TelegramServer

AHEAD = timedelta(seconds=60)


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
    await ahead(place, timedelta())
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
