"""What comes from Telegram, and how it is asked."""

from __future__ import annotations

import json
import logging
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.base import Chunk, File
from channels.errors import ChannelDown, ChannelError, CredentialsRefused, SendLater
from channels.message import Button
from channels.telegram.updates import ALLOWED
from tests.channels.telegram.telegram_place import ADA, Ears, Place
from tests.support.telegram_server import TelegramServer

# -- what comes --------------------------------------------------------------------------------------


async def test_an_unknown_shape_costs_one_line_and_holds_up_nothing(
    server: TelegramServer, place: Place
) -> None:
    """It is logged with its id and kind; the offset moves on. Where a chat is named, the chat is told."""
    nothing = {"message_id": 1, "date": int(time.time()), "chat": {"id": 1, "type": "private"}}
    strange = [
        server.push({"brand_new": {"x": 1}}),
        server.push({"message": "text"}),
        server.push({"edited_message": nothing}),
        server.push({}),
    ]
    server.push({"message": nothing})
    last = server.write(ADA, "hello")
    ears = Ears()
    with structlog.testing.capture_logs() as lines:
        place.run(ears)
        await server.until_confirmed(last)

    warned = [line for line in lines if line["log_level"] == "warning"]
    assert [line["update"] for line in warned] == strange
    assert [line["kind"] for line in warned] == ["brand_new", "message", "edited_message", "empty"]
    heard = [(each.text, each.unreadable) for each in ears.heard]
    assert sorted(heard) == [("", "unknown content"), ("hello", "")]


async def test_half_a_character_does_not_spoil_a_batch(server: TelegramServer, place: Place) -> None:
    """JSON may name half a surrogate pair; the rest of the message is kept."""
    server.write(ADA, "broken \ud83d pair")
    last = server.write(ADA, "whole \U0001f600 pair")
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)

    assert ears.texts() == ["broken ? pair", "whole \U0001f600 pair"]


async def test_a_pressed_button_rests_though_the_queue_is_away(server: TelegramServer, place: Place) -> None:
    """It does not turn for ever; the value waits for its emit."""
    place.press_s = 0.01
    await place.restart()
    ears = Ears(holds=lambda _: True)
    server.push({"callback_query": pressed("q7")})
    place.run(ears)
    (answer,) = await server.until_called("answerCallbackQuery")

    assert answer.params == {"callback_query_id": "q7"}
    await ears.until(lambda ears: ears.begun)
    assert [(each.kind, each.text) for each in ears.begun] == [("action", "yes")]
    assert ears.heard == []


async def test_a_press_that_nobody_answers_rests_at_once(server: TelegramServer, place: Place) -> None:
    """Of a stranger to whom nothing is said, and below a message that lies in no chat."""
    ears = Ears()
    ears.dismisses = True
    server.push({"callback_query": pressed("q7")})
    server.push({"callback_query": pressed("q8") | {"message": None, "inline_message_id": "i"}})
    place.run(ears)
    answers = await server.until_called("answerCallbackQuery", 2)

    assert {each.params["callback_query_id"] for each in answers} == {"q7", "q8"}


async def test_an_answer_to_a_press_is_for_the_presser_alone(server: TelegramServer, place: Place) -> None:
    """While the button turns, once, and short enough for it; anything else is a message."""
    ears = Ears()
    server.write(ADA, "hello")
    server.push({"callback_query": pressed("q7")})
    server.push({"callback_query": pressed("q8")})
    place.run(ears)
    await ears.until(lambda ears: len(ears.heard) == 3)

    async def say(text: str, press: str, **more: Any) -> str:
        meta = {"press": press}
        (content,) = place.channel.split(text)
        return await place.channel.send(
            Chunk(chat_id=str(ADA), content=content, nonce="n", meta=meta, **more)
        )

    await say("not yours", "q7")
    await say("said again", "q7")
    await say("x" * 201, "q8")
    await say("asked", "q8", buttons=(Button(label="Yes", value="yes"),))
    server.fail("answerCallbackQuery", how="400")
    await say("too late", "q8")
    await say("of another life", "q9")

    assert server.world.answered == {"q7": "not yours"}
    (shown,) = [each.params for each in server.called("answerCallbackQuery") if each.outcome == "answered"]
    assert shown["show_alert"]
    assert [each.text for each in server.sent] == [
        "said again", "x" * 201, "asked", "too late", "of another life"
    ]  # fmt: skip


def pressed(id_: str) -> dict[str, Any]:
    message = {"message_id": 1, "date": 1, "chat": {"id": ADA, "type": "private"}}
    person = {"id": ADA, "is_bot": False, "first_name": "Ada"}
    return {"id": id_, "from": person, "data": "yes", "message": message}


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
    assert [each.group_ids for each in ears.heard[1:3]] == [("-1000000000005", "-5")] * 2


async def received(server: TelegramServer, place: Place, content: bytes) -> File:
    """Let a document come; return it as it is emitted."""
    last = server.write(ADA, files=[("document", "a.bin", content, "")])
    ears = Ears()
    place.run(ears)
    await server.until_confirmed(last)
    (file,) = ears.heard[0].files
    return file


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
        assert b"".join([chunk async for chunk in file.fetch()]) == content
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
    file = await received(server, place, b"x" * 300_000)
    server.fail(method, how=how)

    with pytest.raises(ChannelError) as raised:
        _ = [chunk async for chunk in file.fetch()]
    whole = b"".join([chunk async for chunk in file.fetch()])

    assert type(raised.value) is error
    assert server.token not in str(raised.value)
    assert len(whole) == 300_000


async def test_a_file_that_is_away_for_now_may_be_fetched_later(server: TelegramServer, place: Place) -> None:
    file = await received(server, place, b"x")
    files = dict(server.world.files)
    server.world.files.clear()

    with pytest.raises(ChannelDown, match="temporarily unavailable"):
        _ = [chunk async for chunk in file.fetch()]
    server.world.files.update(files)

    assert b"".join([chunk async for chunk in file.fetch()]) == b"x"


async def test_a_file_over_the_limit_is_refused_in_words(server: TelegramServer, place: Place) -> None:
    """Telegram gives bots nothing over 20 MB."""
    file = await received(server, place, b"x" * (20 * 2**20 + 1))

    with pytest.raises(ChannelError, match="over 20 MB") as raised:
        _ = [chunk async for chunk in file.fetch()]
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
                _ = [chunk async for chunk in ears.heard[0].files[0].fetch()]
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
