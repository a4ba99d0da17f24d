"""A Discord adapter in a hurry on a local server, and what it emitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

import durable
from channels.base import Arrival, Chunk, Pulse, Rendered, Site
from channels.discord.adapter import Discord
from channels.discord.ingress import Tempo
from channels.storage import from_ms, read_rows
from channels.tables import DiscordTable as Table
from tests.support.discord_server import DiscordServer

SENDS = "/channels/*/messages"
HURRY = Tempo(deadline_s=5.0, pause_s=0.02, longest_pause_s=0.1, defer_s=2.5, guilds_s=0.05)
# No server is told of after the first sweep, where it would ask for another one.
CALM = replace(HURRY, guilds_s=1.0)


@dataclass
class Record:
    """A durable queue: ids in the order in which they were confirmed; a repeat is known."""

    arrivals: list[Arrival] = field(default_factory=list)
    repeats: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    # What each emit says of the chat.
    will_hear: bool = True
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    begun: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def emit(self, arrival: Arrival) -> bool:
        async with self._changed:
            self.begun.append(arrival.text)
            self._changed.notify_all()
        await self.gate.wait()
        async with self._changed:
            if any(known.id == arrival.id for known in self.arrivals):
                self.repeats += 1
            else:
                self.arrivals.append(arrival)
            self._changed.notify_all()
        return self.will_hear

    def texts(self, chat_id: str | None = None) -> list[str]:
        return [each.text for each in self.arrivals if chat_id in (None, each.chat_id)]

    async def until(self, done: Callable[[], object], *, within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(done)

    async def count(self, n: int, *, within_s: float = 30.0) -> list[Arrival]:
        await self.until(lambda: len(self.arrivals) >= n, within_s=within_s)
        return self.arrivals

    async def text(self, text: str) -> Arrival:
        await self.until(lambda: text in self.texts())
        return next(each for each in self.arrivals if each.text == text)


class Beats(Pulse):
    """A pulse whose changes can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.failures: list[str] = []
        self.beats = 0

    def beat(self, *, within_s: float) -> None:
        super().beat(within_s=within_s)
        self.beats += 1
        self.changed.set()

    def fail(self, error: str) -> None:
        super().fail(error)
        self.failures.append(error)
        self.changed.set()

    async def until(self, done: Callable[[], object], *, within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not done():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Running:
    """One adapter that runs, its record and its pulse."""

    channel: Discord
    record: Record
    pulse: Beats
    task: asyncio.Task[None]


def table(server: DiscordServer, **more: Any) -> Table:
    """The configuration for a local server, without patience."""
    values: dict[str, Any] = {
        "enabled": True,
        "token": SecretStr(server.token),
        "api_base_url": server.api_base_url,
        "request_timeout_s": 5.0,
        "sweep_s": 60.0,
        "heartbeat_timeout_s": 20.0,
    }
    return Table(**(values | more))


def adapter(server: DiscordServer, state: Path, **more: Any) -> tuple[Discord, Beats]:
    pulse = Beats()
    tempo = more.pop("tempo", HURRY)
    return Discord(table(server, **more), Site(state, pulse, {}), tempo=tempo), pulse


@asynccontextmanager
async def running(
    server: DiscordServer, state: Path, *, record: Record | None = None, ready: bool = True, **more: Any
) -> AsyncIterator[Running]:
    """Run an adapter while the context is open; with ``ready`` it is connected, and about to sweep."""
    channel, pulse = adapter(server, state, **more)
    record = record or Record()
    before = len(server.gateway.connections)
    task = asyncio.create_task(channel.run(record.emit), name="run")
    try:
        if ready:
            connected = server.until(lambda: len(server.gateway.connections) > before)
            await durable.first_of(connected, asyncio.wait([task]), timeout_s=30)
            if task.done():
                task.result()
            assert len(server.gateway.connections) > before
            await pulse.until(lambda: pulse.up)
        yield Running(channel, record, pulse, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await channel.aclose()


def chunk(chat_id: str, text: str, nonce: str = "n1", **more: Any) -> Chunk:
    return Chunk(chat_id, Rendered(text), nonce, **more)


def book(state: Path, server: DiscordServer) -> dict[str, Any]:
    """Return what the database holds of the bot."""
    with read_rows(state) as file:
        first, swept = file.execute(
            "SELECT first_start_ms, swept_ms FROM bots WHERE bot = ?", (server.bot.id,)
        ).fetchone()
        rows = file.execute("SELECT chat, read_to, person FROM cursors WHERE bot = ?", (server.bot.id,))
        cursors = {chat: (str(at), person) for chat, at, person in rows}
    return {
        "first_start": from_ms(first),
        "swept_at": swept and from_ms(swept),
        "cursors": {chat: at for chat, (at, _) in cursors.items()},
        "direct": {chat: person for chat, (_, person) in cursors.items() if person},
    }


@asynccontextmanager
async def sender(server: DiscordServer, state: Path, **more: Any) -> AsyncIterator[Any]:
    channel, _ = adapter(server, state, **more)
    try:
        yield channel
    finally:
        await channel.aclose()
