"""The real discord.py, whose events can be waited for, in front of the local Discord."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import discord
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route

from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel

WITHIN_S = 30


class Client(discord.Client):
    """discord.py that puts what it receives into ``seen`` and identifies again without its pause."""

    def __init__(self, **options: Any) -> None:
        intents = options.pop("intents", None) or with_content()
        super().__init__(intents=intents, guild_ready_timeout=0.05, max_ratelimit_timeout=30, **options)
        self.seen: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Wait for nothing."""

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        super().dispatch(event, *args, **kwargs)
        self.seen.put_nowait((event, args[0] if args else None))

    async def next(self, event: str) -> Any:
        """The next event of this name."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                name, value = await self.seen.get()
                if name == event:
                    return value

    async def texts(self, n: int) -> list[str]:
        return [(await self.next("message")).content for _ in range(n)]

    def place(self, channel: Channel) -> Any:
        found = self.get_channel(int(channel.id))
        assert found is not None
        return found


def with_content() -> discord.Intents:
    intents = discord.Intents.default()
    intents.message_content = True
    return intents


@asynccontextmanager
async def logged_in(server: DiscordServer, **options: Any) -> AsyncIterator[Client]:
    Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY = server.api_base_url, yarl.URL(server.gateway_url)
    client = Client(**options)
    async with client:
        await client.login(server.token)
        yield client


@asynccontextmanager
async def ready(server: DiscordServer, **options: Any) -> AsyncIterator[Client]:
    async with logged_in(server, **options) as client:
        task = asyncio.create_task(client.connect())
        try:
            await client.next("ready")
            yield client
        finally:
            await client.close()
            await asyncio.wait_for(task, WITHIN_S)
