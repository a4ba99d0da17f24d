"""Sending to Telegram: what arrives, and what each failure means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Chunk, Rendered
from channels.errors import (
    ChannelDown,
    ChannelError,
    CredentialsRefused,
    MessageGone,
    SendLater,
    SendNever,
    SendUnknown,
)
from tests.channels.telegram.telegram_place import ADA, Place
from tests.support.clock import Clock
from tests.support.telegram_server import TelegramServer

FORUM = -1000000000123
BOLD = ({"type": "bold", "offset": 0, "length": 2},)


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        running.write(ADA, "hello")
        yield running


def chunk(text: str = "hi", chat_id: object = ADA, **fields: Any) -> Chunk:
    return Chunk(str(chat_id), Rendered(text, fields.pop("markup", None)), "nonce", **fields)


async def test_a_text_arrives_with_its_marks(server: TelegramServer, place: Place) -> None:
    """Entities go as they are; the id is the message's."""
    sent_id = await place.channel.send(chunk(markup=BOLD))

    (sent,) = server.sent
    assert (sent.chat_id, sent.text, sent.entities, sent.reply_to) == (ADA, "hi", list(BOLD), None)
    assert sent_id == str(sent.message_id)


async def test_an_answer_to_a_deleted_message_is_sent_all_the_same(
    server: TelegramServer, place: Place
) -> None:
    """It then quotes nothing."""
    await place.channel.send(chunk(reply_to="999"))

    assert [sent.reply_to for sent in server.sent] == [None]


@pytest.mark.parametrize(
    "words",
    [
        "reply message not found",
        "replied message not found",
        "message to be replied not found",
        "REPLY_MESSAGE_ID_INVALID",
    ],
)
async def test_where_telegram_insists_on_a_deleted_question_the_answer_quotes_none(
    server: TelegramServer, place: Place, words: str
) -> None:
    server.fail("sendMessage", how="400", description=f"Bad Request: {words}")

    await place.channel.send(chunk("still", reply_to="1"))

    assert [(sent.text, sent.reply_to) for sent in server.sent] == [("still", None)]


@pytest.mark.parametrize("words", ["can't parse entities: unsupported type", "ENTITY_BOUNDS_INVALID"])
async def test_a_refused_rendering_goes_once_as_plain_text(
    server: TelegramServer, place: Place, words: str
) -> None:
    """The words matter more than the bold ones among them."""
    server.fail("sendMessage", how="400", description=f"Bad Request: {words}")
    await place.channel.send(chunk(markup=BOLD))

    assert [(sent.text, sent.entities) for sent in server.sent] == [("hi", [])]
    server.fail("sendMessage", how="400", description=f"Bad Request: {words}", times=2)
    with pytest.raises(SendNever):
        await place.channel.send(chunk(markup=BOLD))


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("429", SendLater),
        ("400", SendNever),
        ("403", SendNever),
        ("413", SendNever),
        ("401", CredentialsRefused),
        ("409", ChannelDown),
        ("500", SendUnknown),
        ("502", SendUnknown),
        ("503", SendUnknown),
        ("504", SendUnknown),
        ("html", SendUnknown),
        ("drop", SendUnknown),
        ("drop_after", SendUnknown),
        ("garbage", SendUnknown),
    ],
)
async def test_what_a_failure_means(
    server: TelegramServer, place: Place, how: str, error: type[ChannelError]
) -> None:
    """Each failure says whether the message may have been sent, and nothing is sent twice."""
    server.fail("sendMessage", how=how, retry_after=4)

    with pytest.raises(error) as raised:
        await place.channel.send(chunk())

    assert len(server.called("sendMessage")) == 1
    assert server.token not in f"{raised.value} {raised.value.__cause__}"
    if isinstance(raised.value, SendLater):
        assert raised.value.after_s == 4.0


@pytest.mark.slow
async def test_a_send_without_an_answer_is_unknown(server: TelegramServer, tmp_path: Path) -> None:
    """One that hangs holds up no other chat meanwhile."""
    patient, hasty = (
        Place(server, tmp_path, request_timeout_s=60.0),
        Place(server, tmp_path, request_timeout_s=2.0),
    )
    server.write(ADA + 1, "hello")
    server.fail("sendMessage", how="hang", times=None, chat_id=ADA)
    hanging = asyncio.create_task(patient.channel.send(chunk()))
    await server.until_called("sendMessage")
    await patient.channel.send(chunk(chat_id=ADA + 1))

    assert not hanging.done()
    with pytest.raises(SendUnknown):
        await hasty.channel.send(chunk())
    hanging.cancel()
    await asyncio.wait([hanging])
    await patient.stop()
    await hasty.stop()


async def test_what_was_for_a_topic_that_is_gone_goes_to_the_main_thread(
    server: TelegramServer, place: Place, tmp_path: Path
) -> None:
    """A text and a file, also where its question is gone with it; any other refusal stays one."""
    server.write(FORUM, "hello", thread=5)
    file = tmp_path / "a.txt"
    file.write_bytes(b"x")
    closed = server.fail("sendMessage", how="400", description="Bad Request: TOPIC_CLOSED")

    with pytest.raises(SendNever):
        await place.channel.send(chunk(chat_id=f"{FORUM}:topic:5"))
    closed.end()
    await place.channel.send(chunk(chat_id=f"{FORUM}:topic:9", reply_to="77"))
    await place.channel.send(Chunk(f"{FORUM}:topic:9", file, "nonce"))

    assert [sent.thread for sent in server.sent_to(FORUM)] == [None, None]


@pytest.mark.parametrize("chat_id", ["999", "direct", ""])
async def test_a_chat_that_is_none_is_refused_for_good(
    server: TelegramServer, place: Place, chat_id: str
) -> None:
    """An unknown chat, and what is no id at all."""
    server.write(FORUM, "hello", thread=5)

    with pytest.raises(SendNever):
        await place.channel.send(chunk(chat_id=chat_id))


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("a.jpg", "sendPhoto"),
        ("a.PNG", "sendPhoto"),
        ("a.mp4", "sendVideo"),
        ("a.mp3", "sendAudio"),
        ("a.ogg", "sendVoice"),
        ("a.gif", "sendDocument"),
        ("a.svg", "sendDocument"),
        ("été 1.pdf", "sendDocument"),
        ("plain", "sendDocument"),
    ],
)
async def test_a_file_is_sent_as_what_it_is(
    server: TelegramServer, place: Place, tmp_path: Path, name: str, method: str
) -> None:
    """Its name and its bytes arrive; it may reply like a text."""
    file = tmp_path / name
    file.write_bytes(b"x" * 100_000)
    await place.channel.send(Chunk(str(ADA), file, "nonce", reply_to="1"))

    (sent,) = server.sent
    assert (sent.method, sent.file, sent.reply_to) == (method, (name, b"x" * 100_000), 1)


@pytest.mark.parametrize(
    ("caption", "shown"),
    [
        ("🦀" * 512, "🦀" * 512),
        ("🦀" * 513, "🦀" * 511 + "…"),
        ("word 🦀 " * 200, ("word 🦀 " * 200)[:850]),
    ],
)
async def test_a_caption_counts_as_telegram_counts_it(
    server: TelegramServer, place: Place, tmp_path: Path, caption: str, shown: str
) -> None:
    """One that is too long costs its end, not the file."""
    (file := tmp_path / "plan.txt").write_text("plan")
    await place.channel.send(Chunk(str(ADA), file, "nonce", caption=caption))

    (sent,) = server.sent
    assert sent.file == ("plan.txt", b"plan")
    assert sent.text.startswith(shown)
    assert sent.text == caption or sent.text.endswith("…")


@pytest.mark.parametrize(("size", "tries"), [(1, 1), (10 * 2**20 + 1, 0)])
async def test_a_refused_or_large_photo_goes_as_a_document(
    server: TelegramServer, place: Place, tmp_path: Path, size: int, tries: int
) -> None:
    """Telegram does not show every picture, and none over 10 MB, but it takes every file."""
    (file := tmp_path / "a.png").write_bytes(b"x" * size)
    server.fail("sendPhoto", how="400", description="Bad Request: PHOTO_INVALID_DIMENSIONS")
    await place.channel.send(Chunk(str(ADA), file, "nonce"))

    assert len(server.called("sendPhoto")) == tries
    assert [sent.method for sent in server.sent] == ["sendDocument"]


async def test_a_file_that_is_gone_or_too_large_is_refused(
    server: TelegramServer, place: Place, tmp_path: Path
) -> None:
    """Neither is tried again."""
    large = tmp_path / "large.bin"
    large.write_bytes(b"x")
    server.fail("sendDocument", how="413")

    for path in (tmp_path / "none.txt", large):
        with pytest.raises(SendNever):
            await place.channel.send(Chunk(str(ADA), path, "nonce"))


# -- edits, typing, menu, administrators -------------------------------------------------------------


async def test_an_edit_replaces_the_text_in_a_topic(server: TelegramServer, place: Place) -> None:
    """A message is known by its chat alone; the same text again is no error."""
    server.write(FORUM, "hello", thread=5)
    topic = f"{FORUM}:topic:5"
    sent_id = await place.channel.send(chunk("draft", topic))
    for _ in range(2):
        await place.channel.edit(topic, sent_id, Rendered("final", BOLD))

    assert [(edit.text, edit.entities) for edit in server.edits] == [("final", list(BOLD))]


async def test_an_edit_of_what_is_gone_says_so(server: TelegramServer, place: Place) -> None:
    """Deleted, somebody else's, or no message of Telegram at all."""
    for platform_id in ("999", "1", "abc"):
        with pytest.raises(MessageGone):
            await place.channel.edit(str(ADA), platform_id, Rendered("final"))


async def test_an_edit_fails_as_a_send_does(server: TelegramServer, place: Place) -> None:
    """Rate limits and refused entities are treated alike."""
    sent_id = await place.channel.send(chunk("draft"))
    server.fail("editMessageText", how="400", description="Bad Request: can't parse entities: x")
    await place.channel.edit(str(ADA), sent_id, Rendered("final", BOLD))
    server.fail("editMessageText", how="429", retry_after=2)

    with pytest.raises(SendLater):
        await place.channel.edit(str(ADA), sent_id, Rendered("other"))
    assert [edit.entities for edit in server.edits] == [[]]


async def test_typing_shows_in_its_topic(server: TelegramServer, place: Place) -> None:
    """The action names chat and topic."""
    server.write(FORUM, "hello", thread=5)
    await place.channel.typing(f"{FORUM}:topic:5")

    assert [(action.chat_id, action.action, action.thread) for action in server.actions] == [
        (FORUM, "typing", 5)
    ]


async def test_the_menu_is_replaced(server: TelegramServer, place: Place) -> None:
    """A name that Telegram would refuse does not cost the others."""
    await place.channel.register({"new": "Begin anew", "Two Words": "no", "help": "", "long": "x" * 300})

    assert server.world.commands == [
        {"command": "new", "description": "Begin anew"},
        {"command": "help", "description": "help"},
        {"command": "long", "description": "x" * 256},
    ]


async def test_administrators_are_known_for_five_minutes(server: TelegramServer, place: Place) -> None:
    """Telegram is asked once in that time; topics share their group's administrators."""
    clock = Clock()
    channel = place.new(clock.monotonic)
    chat = server.add_chat(FORUM, "supergroup", admins={7})
    chat.members |= {7: {"id": 7}, 8: {"id": 8}}

    assert await channel.is_admin(str(FORUM), "7")
    assert await channel.is_admin(f"{FORUM}:topic:5", "7")
    assert not await channel.is_admin(str(FORUM), "8")
    assert len(server.called("getChatMember")) == 2

    chat.admins.clear()
    clock.forward(299)
    assert await channel.is_admin(str(FORUM), "7")
    clock.forward(2)
    assert not await channel.is_admin(str(FORUM), "7")
    await channel.aclose()


@pytest.mark.parametrize("how", ["500", "429", "garbage"])
async def test_while_telegram_does_not_say_nobody_knows_who_is_an_administrator(
    server: TelegramServer, place: Place, how: str
) -> None:
    """A failure is no answer, and is not remembered as one; a refusal is one."""
    chat = server.add_chat(FORUM, "supergroup", admins={7})
    chat.members |= {7: {"id": 7}}
    server.fail("getChatMember", how=how)

    with pytest.raises(ChannelError):
        await place.channel.is_admin(str(FORUM), "7")
    assert await place.channel.is_admin(str(FORUM), "7")
    assert not await place.channel.is_admin(str(FORUM), "9")
    assert not await place.channel.is_admin(str(FORUM), "-1")


async def test_who_writes_in_the_groups_name_is_an_administrator(
    server: TelegramServer, place: Place
) -> None:
    """Nobody else may."""
    assert await place.channel.is_admin(str(FORUM), str(FORUM))
    assert server.calls == []
