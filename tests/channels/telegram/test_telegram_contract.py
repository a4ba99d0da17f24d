"""The adapter of Telegram keeps what every adapter must keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from channels.base import Channel
from channels.testing import Break, ChannelContract, FarSide, Shown
from tests.channels.telegram.telegram_place import ADA, Place
from tests.support.guarantee import guarantee
from tests.support.telegram_server import TelegramServer

pytestmark = guarantee("interfaces", "All channel adapters fulfil the same contract.")


class LocalTelegram:
    """The far side: a private chat on the local server."""

    chat_id = str(ADA)

    def __init__(self, server: TelegramServer, place: Place) -> None:
        self.server = server
        self.place = place
        self.away = False
        server.add_chat(ADA)

    async def write(self, text: str) -> None:
        """Let Ada write."""
        self.server.write(ADA, text)

    async def sent(self) -> list[Shown]:
        """List what stands in her chat; whoever looks has a network again."""
        if self.away:
            self.server.resume()
            self.away = False
        return [
            Shown(str(sent.message_id), str(sent.chat_id), sent.file[0] if sent.file else sent.text)
            for sent in self.server.sent_to(ADA)
        ]

    async def break_next(self, how: Break) -> None:
        """Let the next call fail."""
        match how:
            case "down":
                self.server.pause()
                self.away = True
            case "later":
                self.server.fail("*", how="429")
            case "never":
                self.server.fail("*", how="403")
            case "unknown":
                self.server.fail("*", how="drop_after")
            case "gone":
                self.server.world.chats[ADA].messages.clear()
            case "moved":
                self.server.world.moved[ADA] = -1000000000005


class TestTelegram(ChannelContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.state = tmp_path

    @asynccontextmanager
    async def open_channel(self) -> AsyncIterator[tuple[Channel, FarSide]]:
        async with TelegramServer() as server:
            place = Place(server, self.state)
            yield place.channel, LocalTelegram(server, place)
            await place.stop()

    def open_again(self, platform: FarSide) -> AbstractAsyncContextManager[Channel]:
        assert isinstance(platform, LocalTelegram)
        return self._open_again(platform)

    @asynccontextmanager
    async def _open_again(self, platform: LocalTelegram) -> AsyncIterator[Channel]:
        channel = platform.place.new()
        yield channel
        await channel.aclose()
