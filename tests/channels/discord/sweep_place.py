"""A sweeper on a local Discord, asked by hand: what it read, and what it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from channels.discord.backfill import Sweeper
from channels.discord.ingress import Cursors, DiscordIngress
from channels.discord.messages import Location
from channels.discord.rest import Rest
from tests.channels.discord.discord_place import HURRY, Record, table
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place

LONG_AGO = timedelta(minutes=5)


@dataclass
class View:
    """What the gateway told: the servers, None before it did, and where nothing may be read back."""

    guilds: list[str] | None = field(default_factory=list)
    closed: set[str] = field(default_factory=set)

    def guild_ids(self) -> list[str] | None:
        return self.guilds

    def own_roles(self, guild: str) -> frozenset[str]:
        return frozenset()

    def name_of(self, guild: str, number: str) -> str:
        return ""

    def locate(self, channel: str) -> Location | None:
        return None

    def may_read(self, channel: str) -> bool | None:
        return channel not in self.closed


@dataclass
class Rig:
    """A sweeper on a local Discord, without a gateway."""

    server: DiscordServer
    sweeper: Sweeper
    ingress: DiscordIngress
    cursors: Cursors
    view: View
    record: Record
    beats: list[int]

    async def sweep(self, *, whole: bool = False) -> bool:
        self.server.calls.clear()
        return await asyncio.wait_for(self.sweeper.sweep(whole=whole), 30)

    def asked(self, method: str, route: str) -> list[str]:
        """List what stood at the star of each request of a route."""
        head, _, tail = route.partition("*")
        paths = [call.path for call in self.server.calls if call.method == method]
        return sorted(
            path.removeprefix(head).removesuffix(tail)
            for path in paths
            if path.startswith(head) and path.endswith(tail) and path.count("/") == route.count("/")
        )

    def place(self, place: Place) -> Location:
        """Say where a channel of a server stands."""
        assert place.guild is not None
        return Location(place.id, place.guild.id)

    def read(self) -> list[str]:
        return self.asked("GET", "/channels/*/messages")


@asynccontextmanager
async def rig(server: DiscordServer, state: Path, **more: Any) -> AsyncIterator[Rig]:
    patience_s = more.pop("patience_s", 30.0)
    words = table(server, **more)
    rest, record, beats = Rest(words), Record(), list[int]()
    view = View([guild.id for guild in server.guilds.values()])
    cursors = await Cursors.open(state, server.bot.id, lambda: datetime.now(UTC) - timedelta(days=20))
    try:
        async with asyncio.TaskGroup() as group:
            ingress = DiscordIngress(
                record.emit, rest, cursors, me=server.bot.id, view=view, group=group, tempo=HURRY
            )
            sweeper = Sweeper(
                *(words, state, rest, cursors),
                ingress=ingress,
                view=view,
                beat=lambda: beats.append(1),
                patience_s=patience_s,
            )
            yield Rig(server, sweeper, ingress, cursors, view, record, beats)
    finally:
        await rest.aclose()


def old(server: DiscordServer, place: Place, text: str = "old", **ago: float) -> str:
    """Write something that no overlap looks at again."""
    at = datetime.now(UTC) - (timedelta(**ago) if ago else LONG_AGO)
    return server.write(place, text, live=False, at=at)
