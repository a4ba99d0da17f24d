"""The local Bot API is as strict as Telegram's: what tests of the adapter rely on, asked by its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import telegram
from telegram.error import BadRequest

from tests.channels.telegram.telegram_place import ADA
from tests.support.telegram_server import TelegramServer


@pytest.fixture
async def bot(server: TelegramServer) -> AsyncIterator[telegram.Bot]:
    server.add_chat(ADA)
    async with telegram.Bot(server.token, base_url=server.base_url) as bot:
        yield bot


async def test_only_a_poll_with_a_higher_offset_forgets_an_update(
    server: TelegramServer, bot: telegram.Bot
) -> None:
    forgotten: list[str] = []
    server.updates.on_confirm = lambda update: forgotten.append(update["message"]["text"])
    first, second = server.write(ADA, "one"), server.write(ADA, "two")

    for offset, seen, gone in (
        (None, [first, second], []),
        (first, [first, second], []),
        (second + 50, [first, second], []),
        (second, [second], ["one"]),
    ):
        assert [update.update_id for update in await bot.get_updates(offset=offset)] == seen
        assert forgotten == gone


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("\U0001f600" * 2049, {}, "Message is too long"),
        (" \n", {}, "Message text is empty"),
        ("ab", {"entities": [telegram.MessageEntity("bold", 1, 5)]}, "ends after the end of the text"),
        ("\U0001f600", {"entities": [telegram.MessageEntity("bold", 1, 1)]}, "middle of a UTF-16 symbol"),
        ("hi", {"message_thread_id": 9}, "Message thread not found"),
    ],
)
async def test_a_text_is_refused(
    server: TelegramServer, bot: telegram.Bot, text: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=f"(?i){words}"):
        await bot.send_message(ADA, text, **more)

    assert server.sent == []
