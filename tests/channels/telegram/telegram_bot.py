"""The real client library in front of the local Bot API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import telegram

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


def ids(updates: tuple[telegram.Update, ...]) -> list[int]:
    return [update.update_id for update in updates]
