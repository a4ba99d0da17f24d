"""Receiving from Telegram: what it forgets was emitted, chat by chat, whatever breaks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from channels.base import Arrival
from channels.errors import NewerFile
from tests.channels.telegram.telegram_place import ADA, BOB, Ears, Place
from tests.support.telegram_server import Fault, TelegramServer


def gaps(server: TelegramServer) -> list[float]:
    """List the seconds between polls."""
    times = [call.at for call in server.called("getUpdates")]
    return [after - before for before, after in pairwise(times)]


# -- order and confirmation --------------------------------------------------------------------------


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


async def test_a_topic_is_a_line_of_its_own(server: TelegramServer, place: Place) -> None:
    """A slow topic of a forum does not hold up the next one."""
    ears = Ears(holds=lambda arrival: arrival.chat_id.endswith(":topic:5"))
    server.write(-100123, "slow", thread=5)
    server.write(-100123, "quick", thread=6)
    place.run(ears)

    await ears.until(lambda ears: ears.texts("-100123:topic:6") == ["quick"])


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


async def test_a_kill_loses_nothing_and_repeats_under_the_same_ids(
    server: TelegramServer, place: Place
) -> None:
    """Without a last word, what was emitted since the last poll comes again under the id that it had."""
    for number in range(10):
        last = server.write(ADA + number % 2, str(number))
    struck: list[Fault] = []

    # From the first message on Telegram hears nothing any more.
    def holds(arrival: Arrival) -> bool:
        struck[:] = struck or [server.fail("getUpdates", how="drop", times=None)]
        return arrival.text == "4"

    before = Ears(holds)
    place.run(before)
    await before.until(lambda ears: "9" in ears.texts())
    await place.restart()
    struck[0].end()
    after = Ears()
    place.run(after)
    await server.until_confirmed(last)

    assert after.texts(ADA) + after.texts(BOB) == [*"02468", *"13579"]
    assert {each.id for each in before.heard} <= {each.id for each in after.heard}


async def test_ids_may_begin_again_lower(server: TelegramServer, place: Place) -> None:
    """After a quiet week Telegram numbers from anywhere; nothing is compared with the last id."""
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "high"))
    server.updates.next_id = 7
    low = [server.write(ADA, "low"), server.write(ADA, "lower")]
    await server.until_confirmed(low[-1])

    assert low == [7, 8]
    assert ears.texts() == ["high", "low", "lower"]


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
    kept = json.loads((place.state / "telegram.json").read_text())
    first = datetime.fromisoformat(kept["first_start"].pop("4242424242"))
    assert kept == {"v": 1, "first_start": {}}
    # The platform tells its time in whole seconds.
    assert timedelta(seconds=-2) < first - start <= timedelta(0)


async def test_the_first_start_is_kept_before_the_first_poll(server: TelegramServer, place: Place) -> None:
    """A crash right after the first poll finds the time that this poll went by."""
    file = place.state / "telegram.json"
    hanging = server.fail("getUpdates", how="hang")
    known: list[bool] = []
    server.updates.on_confirm = lambda _: None
    place.run(Ears())
    await server.until(lambda: known.append(file.exists()) or server.called("getUpdates"))
    hanging.end()

    assert known[-1]


async def test_a_state_file_of_a_newer_version_is_left_alone(server: TelegramServer, place: Place) -> None:
    """Who goes back to an older program is told, and nothing is written."""
    file = place.state / "telegram.json"
    file.write_text('{"v": 2}')

    with pytest.raises(NewerFile):
        await place.run(Ears())
    assert file.read_text() == '{"v": 2}'
