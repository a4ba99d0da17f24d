"""The local Bot API behaves as Telegram's does, asked by the real client library: chats and sends."""

from __future__ import annotations

import pytest
import telegram
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Forbidden,
)

from tests.channels.telegram.telegram_bot import ADA, GROUP, SUPER, Pair


async def test_commands_and_mentions_are_marked_as_the_platform_does(pair: Pair) -> None:
    server, bot = pair
    server.write(SUPER, "/new@gate_test_bot hi \U0001f600 @ada_l", user=7, thread=5)

    (update,) = await bot.get_updates()

    message = update.message
    assert message is not None
    assert message.is_topic_message and message.message_thread_id == 5
    assert message.parse_entities() == {
        message.entities[0]: "/new@gate_test_bot",
        message.entities[1]: "@ada_l",
    }


async def test_an_edit_keeps_the_message_id(pair: Pair) -> None:
    server, bot = pair
    written = server.message_of[server.write(ADA, "helo")]
    server.write(ADA, "hello", edited=written)

    edit = (await bot.get_updates())[1].edited_message

    assert edit is not None
    assert (edit.message_id, edit.text) == (written, "hello")


async def test_a_file_is_described_and_can_be_fetched(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "look", files=[("photo", "cat.jpg", b"cat" * 100, "image/jpeg")])
    message = (await bot.get_updates())[0].message
    assert message is not None

    fetched = await (await message.photo[-1].get_file()).download_as_bytearray()

    assert message.caption == "look"
    assert bytes(fetched) == b"cat" * 100


async def test_a_file_over_20_mb_is_refused(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, files=[("document", "big.bin", bytes(20 * 2**20 + 1), "application/octet-stream")])
    message = (await bot.get_updates())[0].message
    assert message is not None and message.document is not None

    with pytest.raises(BadRequest, match="File is too big"):
        await message.document.get_file()


async def test_a_group_moves_and_says_where_to(pair: Pair) -> None:
    server, bot = pair
    server.write(GROUP, "hi", user=7)
    server.migrate(GROUP, SUPER)

    with pytest.raises(ChatMigrated) as moved:
        await bot.send_message(GROUP, "hello")
    _, old, new = await bot.get_updates()

    assert moved.value.new_chat_id == SUPER
    assert old.message is not None and old.message.migrate_to_chat_id == SUPER
    assert new.message is not None and new.message.migrate_from_chat_id == GROUP


async def test_a_send_is_recorded_with_its_thread_and_what_it_answers(pair: Pair) -> None:
    server, bot = pair
    asked = server.message_of[server.write(SUPER, "question", user=7, thread=5)]

    sent = await bot.send_message(
        SUPER, "answer", message_thread_id=5, reply_parameters=telegram.ReplyParameters(message_id=asked)
    )

    record = await server.said(SUPER, lambda sent: sent.text == "answer")
    assert (record.message_id, record.reply_to, record.thread) == (sent.message_id, asked, 5)


async def test_an_answer_to_a_message_that_is_gone_is_refused_unless_allowed(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    gone = telegram.ReplyParameters(message_id=99)

    with pytest.raises(BadRequest, match="Message to be replied not found"):
        await bot.send_message(ADA, "answer", reply_parameters=gone)
    lenient = telegram.ReplyParameters(message_id=99, allow_sending_without_reply=True)
    sent = await bot.send_message(ADA, "answer", reply_parameters=lenient)

    assert sent.reply_to_message is None


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("\U0001f600" * 2049, {}, "Message is too long"),
        (" \n", {}, "Message text is empty"),
        ("<b>x", {"parse_mode": "HTML"}, "can't find end tag corresponding to start tag"),
        ("<x>y</x>", {"parse_mode": "HTML"}, "unsupported start tag"),
        ("<b>x</i>", {"parse_mode": "HTML"}, "unmatched end tag"),
        ("done.", {"parse_mode": "MarkdownV2"}, "is reserved and must be escaped"),
        ("*x", {"parse_mode": "MarkdownV2"}, "can't find end of bold entity"),
        ("ab", {"entities": [telegram.MessageEntity("bold", 1, 5)]}, "ends after the end of the text"),
        ("\U0001f600", {"entities": [telegram.MessageEntity("bold", 1, 1)]}, "middle of a UTF-16 symbol"),
        ("hi", {"message_thread_id": 9}, "Message thread not found"),
    ],
)
async def test_a_text_that_the_platform_refuses(
    pair: Pair, text: str, more: dict[str, object], words: str
) -> None:
    server, bot = pair
    server.write(ADA, "hi")

    with pytest.raises(BadRequest, match=f"(?i){words}"):
        await bot.send_message(ADA, text, **more)

    assert server.sent == []


async def test_html_counts_after_it_is_read(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")

    sent = await bot.send_message(ADA, "<b>" + "&lt;" * 4096 + "</b>", parse_mode="HTML")

    assert sent.text == "<" * 4096
    assert [(entity.type, entity.length) for entity in sent.entities] == [("bold", 4096)]


async def test_only_the_first_hundred_entities_are_kept(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")

    await bot.send_message(
        ADA, "x" * 150, entities=[telegram.MessageEntity("bold", n, 1) for n in range(150)]
    )

    assert len(server.sent[0].entities) == 100


async def test_unknown_chats_are_not_found_and_banned_ones_forbidden(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    server.ban(ADA)

    with pytest.raises(BadRequest, match="Chat not found"):
        await bot.send_message(99, "hello")
    with pytest.raises(Forbidden, match="blocked by the user"):
        await bot.send_message(ADA, "hello")
    server.unban(ADA)

    assert (await bot.send_message(ADA, "hello")).text == "hello"


async def test_an_edit_changes_the_text_and_the_same_text_again_is_refused(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    sent = await bot.send_message(ADA, "drafting")

    await bot.edit_message_text("final", ADA, sent.message_id)
    with pytest.raises(BadRequest, match="Message is not modified"):
        await bot.edit_message_text("final", ADA, sent.message_id)
    with pytest.raises(BadRequest, match="Message to edit not found"):
        await bot.edit_message_text("final", ADA, 999)

    assert [edit.text for edit in server.edits] == ["final"]
    assert server.sent[0].versions == ["drafting", "final"]


@pytest.mark.parametrize("kind", ["photo", "document", "voice", "audio", "video"])
async def test_files_are_taken_with_a_caption_of_at_most_1024_units(pair: Pair, kind: str) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    send = getattr(bot, f"send_{kind}")

    await send(ADA, b"content", filename="a.bin", caption="x" * 1024)
    with pytest.raises(BadRequest, match="caption is too long"):
        await send(ADA, b"content", filename="a.bin", caption="x" * 1025)

    assert server.sent[0].method == f"send{kind.capitalize()}"
    assert server.sent[0].file == ("a.bin", b"content")


async def test_typing_commands_and_members(pair: Pair) -> None:
    server, bot = pair
    server.write(SUPER, "hi", user=7, thread=3)
    server.add_chat(SUPER, admins={7})

    await bot.send_chat_action(SUPER, "typing", message_thread_id=3)
    await bot.set_my_commands([("new", "begin a session")])

    assert [(action.chat_id, action.action, action.thread) for action in server.actions] == [
        (SUPER, "typing", 3)
    ]
    assert server.commands["default"] == [{"command": "new", "description": "begin a session"}]
    assert [command.command for command in await bot.get_my_commands()] == ["new"]
    assert [member.user.id for member in await bot.get_chat_administrators(SUPER)] == [7]
    assert (await bot.get_chat_member(SUPER, 7)).status == "administrator"
    with pytest.raises(BadRequest, match=r"(?i)bot_command_invalid"):
        await bot.set_my_commands([("no-dashes", "x")])
