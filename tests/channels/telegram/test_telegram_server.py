"""The local Bot API behaves as Telegram's does, asked by the real client library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import telegram
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
)

from tests.support.telegram_server import TelegramServer

ADA = 12345678
GROUP = -100123
SUPER = -1001234567890

Pair = tuple[TelegramServer, telegram.Bot]


@asynccontextmanager
async def bot_of(server: TelegramServer, token: str = "") -> AsyncIterator[telegram.Bot]:
    urls = {"base_url": server.base_url, "base_file_url": server.base_file_url}
    bot = telegram.Bot(token or server.token, **urls)
    async with bot:
        yield bot


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with TelegramServer() as server, bot_of(server) as bot:
        yield server, bot


def ids(updates: tuple[telegram.Update, ...]) -> list[int]:
    return [update.update_id for update in updates]


# -- updates ------------------------------------------------------------------------------------------


async def test_an_update_is_forgotten_only_by_a_poll_with_a_higher_offset(pair: Pair) -> None:
    server, bot = pair
    first, second = server.write(ADA, "one"), server.write(ADA, "two")

    seen = [ids(await bot.get_updates()), ids(await bot.get_updates(offset=first))]
    assert server.confirmed == 0
    seen.append(ids(await bot.get_updates(offset=second)))

    assert seen == [[first, second], [first, second], [second]]
    assert [update_id for _, update_id in server.confirmations] == [first]


async def test_confirmations_are_told_before_the_poll_is_answered(pair: Pair) -> None:
    server, bot = pair
    told: list[str] = []
    server.updates.on_confirm = lambda update: told.append(update["message"]["text"])
    server.write(ADA, "one")
    last = server.write(ADA, "two")

    await bot.get_updates(offset=last)

    assert told == ["one"]


async def test_a_waiting_poll_is_answered_when_somebody_writes(pair: Pair) -> None:
    server, bot = pair
    poll = asyncio.create_task(bot.get_updates(timeout=20))
    await server.until_called("getUpdates")

    update_id = server.write(ADA, "hello")

    assert ids(await poll) == [update_id]


async def test_of_two_waiting_polls_the_older_gets_a_conflict(pair: Pair) -> None:
    server, bot = pair
    older = asyncio.create_task(bot.get_updates(timeout=20))
    await server.until_called("getUpdates")

    async with bot_of(server) as other:
        younger = asyncio.create_task(other.get_updates(timeout=20))

        with pytest.raises(Conflict, match="terminated by other getUpdates request"):
            await older
        update_id = server.write(ADA, "hello")
        assert ids(await younger) == [update_id]


async def test_repeated_conflicts_are_answered_late(pair: Pair) -> None:
    server, bot = pair
    server.updates.conflict_delay_s = 0.3
    await bot.set_webhook("https://example.org/hook")
    began = time.monotonic()

    for _ in range(2):
        with pytest.raises(Conflict, match="webhook is active"):
            await bot.get_updates()

    assert time.monotonic() - began >= 0.3


async def test_polls_work_again_once_the_webhook_is_gone(pair: Pair) -> None:
    server, bot = pair
    await bot.set_webhook("https://example.org/hook")
    update_id = server.write(ADA, "hello")

    await bot.delete_webhook()

    assert ids(await bot.get_updates()) == [update_id]


async def test_the_same_offset_again_at_once_gives_one_update(pair: Pair) -> None:
    server, bot = pair
    first = server.write(ADA, "one")
    server.write(ADA, "two")
    server.updates.repeated_s = 60.0
    await bot.get_updates(offset=first)

    assert ids(await bot.get_updates(offset=first)) == [first]


async def test_a_negative_offset_takes_the_newest_and_forgets_the_rest(pair: Pair) -> None:
    server, bot = pair
    updates = [server.write(ADA, text) for text in "abcd"]

    assert ids(await bot.get_updates(offset=-2)) == updates[2:]
    assert server.confirmed == updates[1]


async def test_an_offset_far_ahead_gives_the_oldest_and_forgets_nothing(pair: Pair) -> None:
    server, bot = pair
    update_id = server.write(ADA, "one")

    assert ids(await bot.get_updates(offset=update_id + 50)) == [update_id]
    assert server.confirmed == 0


async def test_a_poll_gives_at_most_its_limit(pair: Pair) -> None:
    server, bot = pair
    updates = [server.write(ADA, str(n)) for n in range(120)]

    assert ids(await bot.get_updates(limit=3)) == updates[:3]
    assert ids(await bot.get_updates(offset=updates[1])) == updates[1:101]


async def test_updates_expire_after_a_day(pair: Pair) -> None:
    server, bot = pair
    old = server.write(ADA, "old")
    server.updates.clock = lambda: time.time() + 24 * 3600 + 1

    assert await bot.get_updates() == ()
    assert server.updates.expired == [old]


async def test_allowed_updates_stay_and_hold_for_what_comes_later(pair: Pair) -> None:
    server, bot = pair
    before = server.write(ADA, "before", edited=server.message_of[server.write(ADA, "x")])
    await bot.get_updates(offset=before, allowed_updates=["message"])

    assert server.write(ADA, "later", edited=1) == 0
    assert ids(await bot.get_updates(offset=before, limit=1)) == [before]


async def test_another_process_is_served_as_well() -> None:
    program = "import sys, httpx; print(httpx.get(sys.argv[1], trust_env=False).json()['result']['username'])"
    async with TelegramServer() as server:
        done = subprocess.run(
            [sys.executable, "-c", program, f"{server.base_url}{server.token}/getMe"],
            capture_output=True,
            text=True,
        )

    assert done.stdout.strip() == "gate_test_bot"


def test_it_serves_tests_without_a_loop() -> None:
    with TelegramServer() as server:
        server.write(ADA, "hello")
        body = {"chat_id": ADA, "text": "hi"}

        answer = httpx.post(f"{server.base_url}{server.token}/sendMessage", json=body, trust_env=False).json()

        assert answer["ok"]
        assert server.wait(lambda: server.sent)[0].text == "hi"


# -- what people write --------------------------------------------------------------------------------


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


# -- sends --------------------------------------------------------------------------------------------


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


# -- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "error", "processed"),
    [
        ("429", RetryAfter, False),
        ("500", NetworkError, False),
        ("html", NetworkError, False),
        ("401", InvalidToken, False),
        ("403", Forbidden, False),
        ("409", Conflict, False),
        ("drop", NetworkError, False),
        ("drop_after", NetworkError, True),
        ("garbage", telegram.error.TelegramError, True),
    ],
)
async def test_a_fault_strikes_once(pair: Pair, how: str, error: type[Exception], processed: bool) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    server.fail("sendMessage", how=how)

    with pytest.raises(error):
        await bot.send_message(ADA, "first")
    await bot.send_message(ADA, "second")

    assert [sent.text for sent in server.sent] == (["first", "second"] if processed else ["second"])


async def test_a_fault_may_strike_one_chat_until_it_is_ended(pair: Pair) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    server.write(7, "hi")
    fault = server.fail("sendMessage", how="429", times=None, chat_id=ADA, retry_after=7)

    for _ in range(2):
        with pytest.raises(RetryAfter, match="in 7 seconds"):
            await bot.send_message(ADA, "held")
    await bot.send_message(7, "free")
    fault.end()
    await bot.send_message(ADA, "held")

    assert [sent.chat_id for sent in server.sent] == [7, ADA]
    assert [call.outcome for call in server.called("sendMessage")] == ["refused 429"] * 2 + ["answered"] * 2


@pytest.mark.parametrize(("how", "held"), [("hang", 0), ("hang_after", 1)])
async def test_a_request_hangs_until_the_fault_ends(pair: Pair, how: str, held: int) -> None:
    server, bot = pair
    server.write(ADA, "hi")
    fault = server.fail("sendMessage", how=how)
    sending = asyncio.create_task(bot.send_message(ADA, "late"))
    await server.until(lambda: fault.hits and len(server.sent) == held)

    fault.end()
    await sending

    assert [sent.text for sent in server.sent] == ["late"]


async def test_a_paused_server_refuses_connections_and_comes_back_with_all_it_had(pair: Pair) -> None:
    server, bot = pair
    update_id = server.write(ADA, "hi")
    server.pause()

    with pytest.raises(NetworkError) as refused:
        await bot.get_updates()
    server.resume()

    assert isinstance(refused.value.__cause__, httpx.ConnectError)
    assert ids(await bot.get_updates()) == [update_id]


@pytest.mark.parametrize(("token", "words"), [("1:wrong", "Unauthorized"), ("nonsense", "Not Found")])
async def test_a_wrong_token_is_refused(token: str, words: str) -> None:
    async with TelegramServer() as server, httpx.AsyncClient(trust_env=False) as client:
        answer = (await client.get(f"{server.base_url}{token}/getMe")).json()

    assert (answer["ok"], answer["description"]) == (False, words)


async def test_a_wait_for_what_never_comes_ends(pair: Pair) -> None:
    server, _ = pair

    with pytest.raises(TimeoutError):
        await server.sent_count(1, timeout_s=0.05)
