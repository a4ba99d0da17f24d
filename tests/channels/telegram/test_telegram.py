"""Receiving from Telegram: what it forgets was emitted, chat by chat, whatever breaks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.storage import first_start, from_ms, read_rows
from tests.channels.telegram.telegram_place import ADA, BOB, Ears, Place
from tests.support.guarantee import guarantee
from tests.support.telegram_server import TelegramServer


def gaps(server: TelegramServer) -> list[float]:
    """List the seconds between polls."""
    times = [call.at for call in server.called("getUpdates")]
    return [after - before for before, after in pairwise(times)]


# -- order and confirmation --------------------------------------------------------------------------


@guarantee("loss", "Telegram's offset never passes an update that the broker has not confirmed.")
async def test_nothing_is_forgotten_before_it_was_emitted(server: TelegramServer, place: Place) -> None:
    """At each instant, what Telegram forgets has been emitted, whichever chats are slow."""
    ears = Ears(holds=lambda arrival: arrival.text in ("3", "10", "17"))
    early: list[dict[str, Any]] = []

    def forgotten(update: dict[str, Any]) -> None:
        if update["message"]["text"] not in ears.texts():
            early.append(update)

    server.updates.on_confirm = forgotten
    ids = [server.write(ADA + number % 4, str(number)) for number in range(20)]
    place.run(ears)
    await ears.until(lambda ears: len(ears.begun) - len(ears.heard) == 3)
    await server.until_confirmed(ids[2])
    ears.free()
    await server.until_confirmed(ids[-1])

    assert early == []
    assert len(ears.heard) == len(ears.begun) == 20


async def test_a_slow_chat_holds_up_only_itself(server: TelegramServer, place: Place) -> None:
    """Others are heard while one hangs, also those who write later; its own next messages wait in order."""
    ears = Ears(holds=lambda arrival: arrival.text == "slow")
    place.run(ears)
    first = server.write(ADA, "slow")
    server.write(ADA, "after")
    server.write(BOB, "one")
    await ears.until(lambda ears: "one" in ears.texts())
    last = server.write(BOB, "two")
    await ears.until(lambda ears: "two" in ears.texts())

    assert ears.texts(ADA) == []
    assert [at for at in server.confirmations if at[1] >= first] == []

    ears.free()
    await server.until_confirmed(last)

    assert ears.texts(ADA) == ["slow", "after"]
    assert len(ears.begun) == 4


async def test_a_burst_of_a_thousand_keeps_its_order(server: TelegramServer, place: Place) -> None:
    """A thousand updates come chat by chat in order, once, with no more than a batch at a time in memory."""
    ears = Ears()
    for number in range(1_000):
        last = server.write(ADA + number % 7, str(number))
    place.run(ears)
    await server.until_confirmed(last)

    for chat in range(7):
        assert ears.texts(ADA + chat) == [str(number) for number in range(chat, 1_000, 7)]
    assert ears.most <= 100


@pytest.mark.slow
async def test_a_held_update_is_no_reason_to_poll_in_a_circle(server: TelegramServer, place: Place) -> None:
    """While one is under way Telegram answers at once; the polls keep their distance all the same."""
    ears = Ears(holds=lambda _: True)
    server.write(ADA, "slow")
    place.run(ears)
    await server.until_called("getUpdates", 4)

    assert min(gaps(server)) > 0.5
    assert len(ears.begun) == 1


@pytest.mark.slow
async def test_a_full_window_waits_for_its_oldest(server: TelegramServer, tmp_path: Path) -> None:
    """Where a hundred wait, no poll could bring a new one before the oldest of them is done."""
    full = Place(server, tmp_path, poll_timeout_s=30)
    ears = Ears(holds=lambda _: True)
    for number in range(100):
        server.write(ADA, str(number))
    last = server.write(BOB, "new")
    # Shows how often somebody polls in that time whose window has room.
    async with TelegramServer() as elsewhere:
        roomy = Place(elsewhere, tmp_path / "elsewhere")
        elsewhere.write(ADA, "held")
        full.run(ears)
        await server.until_called("getUpdates", 2)
        roomy.run(Ears(holds=lambda _: True))
        await elsewhere.until_called("getUpdates", 4)
        polls = len(server.called("getUpdates"))
        await roomy.stop()
    ears.free()
    await server.until_confirmed(last)
    await full.stop()

    assert polls == 2
    assert ears.texts(BOB) == ["new"]
    assert len(ears.heard) == len(ears.begun) == 101


# -- restarts ----------------------------------------------------------------------------------------


async def test_a_restart_brings_what_was_not_emitted_and_nothing_else(
    server: TelegramServer, place: Place
) -> None:
    """An adapter that is cancelled in mid-batch lets Telegram forget what is durable, and nothing more."""
    for number in range(10):
        last = server.write(ADA, str(number))
    before = Ears(holds=lambda arrival: arrival.text == "4")
    place.run(before)
    await before.until(lambda ears: len(ears.begun) == 5)
    await place.restart()
    after = Ears()
    place.run(after)
    await server.until_confirmed(last)

    assert before.texts() == ["0", "1", "2", "3"]
    assert after.texts() == ["4", "5", "6", "7", "8", "9"]


async def test_the_first_run_replays_nothing_old(server: TelegramServer, place: Place) -> None:
    """What was written before the very first start is dropped; what waited for a restart is not."""
    start = place.began = datetime.now(UTC)
    await place.restart()
    server.write(ADA, "old", date=(start - timedelta(seconds=2)).timestamp())
    server.write(ADA, "new", date=start.timestamp())
    ears = Ears()
    place.run(ears)
    await ears.until(lambda ears: "new" in ears.texts())
    place.began = start + timedelta(days=1)
    await place.restart()
    last = server.write(ADA, "meanwhile", date=(start + timedelta(hours=1)).timestamp())
    again = Ears()
    place.run(again)
    await server.until_confirmed(last)

    assert ears.texts() == ["new"]
    assert again.texts() == ["meanwhile"]
    first = started(place)
    assert first is not None
    # The platform tells its time in whole seconds.
    assert timedelta(seconds=-2) < first - start <= timedelta(0)


async def test_the_first_start_is_kept_before_the_first_poll(server: TelegramServer, place: Place) -> None:
    """A crash right after the first poll finds the time that this poll went by."""
    hanging = server.fail("getUpdates", how="hang")
    known: list[bool] = []
    server.updates.on_confirm = lambda _: None
    place.run(Ears())
    await server.until(lambda: known.append(started(place) is not None) or server.called("getUpdates"))
    hanging.end()

    assert known[-1]


def started(place: Place) -> datetime | None:
    """Return when the bot was first started, by the database."""
    with read_rows(place.state) as file:
        found = file.execute("SELECT first_start_ms FROM bots WHERE bot = '4242424242'").fetchone()
    return from_ms(found[0]) if found else None


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
    first_start(place.state, "telegram", "4242424242", datetime.now(UTC) + AHEAD)
    ears = Ears()
    place.run(ears)
    server.write(ADA, "new")
    await ears.until(lambda ears: "new" in ears.texts())

    first = started(place)
    assert first is not None
    assert first <= datetime.now(UTC)


async def test_a_bot_is_up_before_its_first_poll_ends(server: TelegramServer, tmp_path: Path) -> None:
    """A long poll in which nobody writes lasts half a minute; the bot is heard all that time."""
    place = Place(server, tmp_path, poll_timeout_s=50)
    place.run(Ears())
    await server.until_called("getUpdates")

    assert (place.pulse.up, place.pulse.failures) == (True, [])
    await place.stop()
