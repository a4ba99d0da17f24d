"""Receiving from Telegram: what it forgets was emitted, chat by chat, whatever breaks."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from channels.base import Arrival
from channels.errors import ChannelDown, ChannelError, CredentialsRefused, NewerFile, SendLater
from channels.telegram_updates import ALLOWED
from tests.channels.telegram_place import Ears, Place
from tests.telegram_server import Fault, TelegramServer

ADA, BOB = 101, 102


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


async def test_a_held_update_is_no_reason_to_poll_in_a_circle(server: TelegramServer, place: Place) -> None:
    """While one is under way Telegram answers at once; the polls keep their distance all the same."""
    ears = Ears(holds=lambda _: True)
    server.write(ADA, "slow")
    place.run(ears)
    await server.until_called("getUpdates", 4)

    assert min(gaps(server)) > 0.5
    assert len(ears.begun) == 1


async def test_a_full_window_waits_for_its_oldest(server: TelegramServer, tmp_path: Path) -> None:
    """Where a hundred wait, no poll could bring a new one before the oldest of them is done."""
    full = Place(server, tmp_path, poll_timeout_s=30)
    ears = Ears(holds=lambda _: True)
    for number in range(100):
        server.write(ADA, str(number))
    last = server.write(BOB, "new")
    async with (
        TelegramServer() as elsewhere
    ):  # shows how often somebody polls in that time whose window has room
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

    def holds(arrival: Arrival) -> bool:  # from the first message on Telegram hears nothing any more
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
    assert kept == {"v": 1, "first_start": {"4242424242": start.replace(microsecond=0).isoformat()}}


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


# -- what goes wrong while polling -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["429", "500", "502", "html", "drop", "drop_after", "garbage"])
async def test_a_broken_poll_is_waited_out(server: TelegramServer, place: Place, how: str) -> None:
    """Nothing is lost or repeated; the adapter says that it is down, and then that it is up."""
    server.write(ADA, "before")
    fault = server.fail("getUpdates", how=how, times=2, retry_after=7)
    ears = Ears()
    place.run(ears)
    last = server.write(ADA, "after")
    await server.until_confirmed(last)

    assert ears.texts() == ["before", "after"]
    assert fault.hits == len(place.pulse.failures) == 2
    assert place.pauses.asked == ([7.0, 7.0] if how == "429" else [1.0, 2.0])
    assert place.pulse.up


async def test_pauses_grow_to_half_a_minute(server: TelegramServer, place: Place) -> None:
    """Back-off doubles from 1 s to 30 s, and begins again after a success."""
    ears = Ears()
    server.fail("getUpdates", how="500", times=7)
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "one"))
    server.fail("getUpdates", how="500")
    await server.until_confirmed(server.write(ADA, "two"))

    assert place.pauses.asked == [1, 2, 4, 8, 16, 30, 30, 1]


async def test_another_program_on_the_token_is_named(server: TelegramServer, place: Place) -> None:
    """A conflict slows the polls down and says why; when the other one stops, ours go on."""
    server.fail("getUpdates", how="409", times=5)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "hello"))

    assert place.pauses.asked == [5, 10, 20, 30, 30]
    assert all("another program polls with this token" in words for words in place.pulse.failures)
    assert place.pulse.up


async def test_two_programs_on_one_token_lose_nothing(server: TelegramServer, place: Place) -> None:
    """While two poll, each message reaches one of them at least."""
    second = Place(server, place.state)
    one, two = Ears(), Ears()
    place.run(one)
    second.run(two)
    ids = [server.write(ADA, str(number)) for number in range(10)]
    await server.until_confirmed(ids[-1])
    await second.stop()

    assert {*one.texts(), *two.texts()} == {str(number) for number in range(10)}


async def test_a_poll_that_hangs_is_given_up_and_its_connection_replaced(
    server: TelegramServer, tmp_path: Path
) -> None:
    """Two stalls build the connection anew; sends go their way meanwhile."""
    place = Place(server, tmp_path)
    place.channel._wire.answer_s = 0.3
    server.add_chat(ADA)
    fault = server.fail("getUpdates", how="hang", times=2)
    ears = Ears()
    with structlog.testing.capture_logs() as lines:
        place.run(ears)
        await server.until_called("getUpdates")
        await place.channel.typing(str(ADA))
        await place.pauses.until(1)
        beat = place.pulse.last_round_trip
        await server.until_confirmed(server.write(ADA, "hello"))
    await place.stop()

    assert beat is None
    assert [line["event"] for line in lines] == ["poll.failed", "poll.reconnected", "poll.failed"]
    assert fault.hits == 2
    assert place.pulse.failures == ["no answer from Telegram in time"] * 2
    assert "hello" in ears.texts()


async def test_sends_that_hang_do_not_keep_polls_from_their_way(
    server: TelegramServer, tmp_path: Path
) -> None:
    """More sends than there are connections may hang, and messages come in all the same."""
    place = Place(server, tmp_path, request_timeout_s=60.0)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "one"))
    server.fail("sendChatAction", how="hang", times=None)
    hanging = [asyncio.create_task(place.channel.typing(str(ADA))) for _ in range(70)]
    await server.until_called("sendChatAction", 64)
    for text in ("two", "three"):
        await server.until_confirmed(server.write(ADA, text))
    waiting = [task for task in hanging if not task.done()]
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await place.stop()

    assert len(waiting) == 70
    assert ears.texts() == ["one", "two", "three"]


async def test_a_network_that_is_cut_comes_back(server: TelegramServer, place: Place) -> None:
    """The adapter waits for as long as it takes."""
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "one"))
    server.pause()
    await place.pauses.until(3)
    server.resume()
    await server.until_confirmed(server.write(ADA, "two"))

    assert ears.texts() == ["one", "two"]
    assert place.pulse.failures


@pytest.mark.parametrize("method", ["getMe", "deleteWebhook"])
async def test_a_start_without_a_network_is_tried_again(
    server: TelegramServer, place: Place, method: str
) -> None:
    """Neither an outage nor nonsense at the start ends the adapter."""
    for how in ("500", "html", "drop", "429", "garbage"):
        server.fail(method, how=how, retry_after=9)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(server.write(ADA, "hello"))

    assert place.pauses.asked == [1, 2, 4, 9, 16]
    assert ears.texts() == ["hello"]


@pytest.mark.parametrize("token", ["4242424242:wrong", "no-token"])
async def test_a_wrong_token_is_one_clear_error(server: TelegramServer, tmp_path: Path, token: str) -> None:
    """Telegram answers 401 or 404; trying again would be of no use."""
    place = Place(server, tmp_path, token=SecretStr(token))

    with pytest.raises(CredentialsRefused) as refused:
        await place.run(Ears())
    await place.stop()

    assert "BotFather" in refused.value.hint
    assert len(server.calls) == 1
    assert token not in repr(refused.value) + place.pulse.error
    assert place.pulse.error == "Telegram refuses the token"


async def test_a_token_that_is_revoked_later_ends_the_run(server: TelegramServer, place: Place) -> None:
    """A poll that is refused ends it as the start does, while an emit hangs."""
    ears = Ears(holds=lambda _: True)
    server.write(ADA, "hello")
    running = place.run(ears)
    await ears.until(lambda ears: ears.begun)
    server.fail("getUpdates", how="401", times=None)

    with pytest.raises(CredentialsRefused):
        await running
    assert ears.heard == []


async def test_an_emit_that_fails_ends_the_run_with_its_own_error(
    server: TelegramServer, place: Place
) -> None:
    """What nobody foresaw is seen by who runs the adapter; the update comes again."""

    async def broken(arrival: Arrival) -> None:
        raise ChannelDown(arrival.text)

    last = server.write(ADA, "hello")
    with pytest.raises(ChannelDown, match="hello"):
        await place.run(broken)
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    assert ears.texts() == ["hello"]


# -- what comes --------------------------------------------------------------------------------------


async def test_an_unknown_shape_costs_one_line_and_holds_up_nothing(
    server: TelegramServer, place: Place
) -> None:
    """It is logged with its id and kind; the offset moves on."""
    strange = [
        server.push({"brand_new": {"x": 1}}),
        server.push({"message": "text"}),
        server.push({"message": {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}}}),
        server.push({}),
    ]
    last = server.write(ADA, "hello")
    ears = Ears()
    with structlog.testing.capture_logs() as lines:
        place.run(ears)
        await server.until_confirmed(last)

    warned = [line for line in lines if line["log_level"] == "warning"]
    assert [line["update"] for line in warned] == strange
    assert [line["kind"] for line in warned] == ["brand_new", "message", "message", "empty"]
    assert ears.texts() == ["hello"]


async def test_half_a_character_does_not_spoil_a_batch(server: TelegramServer, place: Place) -> None:
    """JSON may name half a surrogate pair; the rest of the message is kept."""
    server.write(ADA, "broken \ud83d pair")
    last = server.write(ADA, "whole \U0001f600 pair")
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    assert ears.texts() == ["broken ? pair", "whole \U0001f600 pair"]


async def test_an_edit_comes_after_its_message(server: TelegramServer, place: Place) -> None:
    """An edit waits in the line of its chat."""
    ears = Ears(holds=lambda arrival: arrival.text == "helo")
    first = server.write(ADA, "helo")
    last = server.write(ADA, "hello", edited=server.message_of[first])
    place.run(ears)
    await ears.until(lambda ears: ears.begun)
    ears.free()
    await server.until_confirmed(last)

    assert [(each.kind, each.text) for each in ears.heard] == [("message", "helo"), ("edit", "hello")]
    assert ears.heard[0].platform_id == ears.heard[1].platform_id


async def test_a_pressed_button_is_answered_though_the_queue_is_away(
    server: TelegramServer, place: Place
) -> None:
    """The button stops turning at once; the value waits for its emit."""
    ears = Ears(holds=lambda _: True)
    message = {"message_id": 1, "date": 1, "chat": {"id": ADA, "type": "private"}}
    person = {"id": ADA, "is_bot": False, "first_name": "Ada"}
    server.push({"callback_query": {"id": "q7", "from": person, "data": "yes", "message": message}})
    place.run(ears)
    (answer,) = await server.until_called("answerCallbackQuery")

    assert answer.params["callback_query_id"] == "q7"
    assert [(each.kind, each.text) for each in ears.begun] == [("action", "yes")]
    assert ears.heard == []


async def test_a_group_that_moves_waits_for_what_came_before(server: TelegramServer, place: Place) -> None:
    """The news of the move is behind the old chat's messages and before the new one's."""
    ears = Ears(holds=lambda arrival: arrival.text == "old")
    server.write(-5, "old", type="group")
    server.migrate(-5, -1000000000005)
    last = server.write(-1000000000005, "new")
    place.run(ears)
    await ears.until(lambda ears: ears.begun)
    ears.free()
    await server.until_confirmed(last)

    seen = [(each.chat_id, each.text, each.moved_from) for each in ears.heard]
    moved = ("-1000000000005", "", "-5")
    assert seen == [("-5", "old", ""), moved, moved, ("-1000000000005", "new", "")]


async def test_a_file_is_fetched_piece_by_piece(server: TelegramServer, place: Place) -> None:
    """The bytes are those that were sent; of a photo the largest size."""
    content = bytes(range(256)) * 1_000
    for kind in ("photo", "document", "voice"):
        last = server.write(ADA, files=[(kind, "a.bin", content, "image/png")])
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    for arrival in ears.heard:
        (file,) = arrival.files
        assert b"".join([piece async for piece in file.fetch()]) == content
        assert file.size == len(content)


@pytest.mark.parametrize(
    ("method", "how", "error"),
    [
        ("getFile", "500", ChannelDown),
        ("getFile", "drop", ChannelDown),
        ("getFile", "429", SendLater),
        ("file", "500", ChannelDown),
        ("file", "404", ChannelError),
        ("file", "drop", ChannelDown),
        ("file", "drop_after", ChannelDown),
    ],
)
async def test_a_download_that_breaks_off_says_whether_to_try_again(
    server: TelegramServer, place: Place, method: str, how: str, error: type[ChannelError]
) -> None:
    """Never half a file, never the address in the words, and the next try has it whole."""
    last = server.write(ADA, files=[("document", "a.bin", b"x" * 300_000, "")])
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)
    (file,) = ears.heard[0].files
    server.fail(method, how=how)

    with pytest.raises(ChannelError) as raised:
        _ = [piece async for piece in file.fetch()]
    whole = b"".join([piece async for piece in file.fetch()])

    assert type(raised.value) is error
    assert server.token not in str(raised.value)
    assert len(whole) == 300_000


async def test_a_file_over_the_limit_is_refused_in_words(server: TelegramServer, place: Place) -> None:
    """Telegram gives bots nothing over 20 MB."""
    last = server.write(ADA, files=[("document", "a.bin", b"x" * (20 * 2**20 + 1), "")])
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    with pytest.raises(ChannelError, match="over 20 MB") as raised:
        _ = [piece async for piece in ears.heard[0].files[0].fetch()]
    assert type(raised.value) is ChannelError


# -- how it asks -------------------------------------------------------------------------------------


async def test_every_poll_names_what_it_wants_and_nothing_is_ever_dropped(
    server: TelegramServer, place: Place
) -> None:
    """The webhook is removed once without what waits; the kinds of updates are named each time."""
    server.updates.webhook = "https://example.org/hook"
    waiting = server.write(ADA, "waiting")
    place.run(Ears())
    await server.until_confirmed(waiting)
    await server.until_confirmed(server.write(ADA, "next"))

    (removed,) = server.called("deleteWebhook")
    assert "drop_pending_updates" not in removed.params
    polls = server.called("getUpdates")
    assert [json.loads(poll.params["allowed_updates"]) for poll in polls] == [list(ALLOWED)] * len(polls)
    assert "offset" not in polls[0].params


async def test_each_completed_poll_is_a_beat(server: TelegramServer, place: Place) -> None:
    """The next one is due after twice what a poll and its answer may take."""
    place.run(Ears())
    await server.until_confirmed(server.write(ADA, "hello"))

    assert place.pulse.up
    assert place.pulse.last_round_trip is not None
    assert place.pulse.within_s == 2 * (1 + 5.0)


async def test_the_token_is_in_no_log(
    server: TelegramServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither our lines nor the libraries' warnings hold it, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    for library in ("telegram", "httpx", "httpcore"):
        caplog.set_level(logging.WARNING, logger=library)
    place = Place(server, tmp_path)
    for how in ("500", "html", "drop", "409", "garbage", "429"):
        server.fail("getUpdates", how=how)
        server.fail("getFile", how=how)
    last = server.write(ADA, files=[("document", "a.bin", b"x", "")])
    ears = Ears()
    errors: list[str] = []
    with structlog.testing.capture_logs() as lines:
        place.run(ears)
        await server.until_confirmed(last)
        for _ in range(6):
            try:
                _ = [piece async for piece in ears.heard[0].files[0].fetch()]
            except ChannelError as error:
                errors += traceback.format_exception(error)
        await place.restart()
        server.fail("getUpdates", how="401")
        with pytest.raises(CredentialsRefused) as refused:
            await place.run(ears)
        errors += traceback.format_exception(refused.value)
        await place.stop()

    said = [*map(str, lines), caplog.text, *errors, *place.pulse.failures]
    assert len(lines) == 6
    assert len(errors) > 6
    assert server.token not in "".join(said)
    assert "AAtest" not in "".join(said)
