"""What the tests of whole gateways with a platform share: configuration, processes, a tap on the queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika

from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.harness import Daemon, command
from tests.support.model_server import ModelServer
from tests.support.place import on
from tests.support.telegram_server import TelegramServer

ADA = 12345678


def with_telegram(server: TelegramServer, **more: Any) -> dict[str, Any]:
    """Switch the adapter on, for everyone, with short polls."""
    table = {
        "enabled": True,
        "token": server.token,
        "base_url": server.base_url,
        "base_file_url": server.base_file_url,
        "poll_timeout_s": 1,
        "direct": "open",
        "group_allow": ["*"],
        **more,
    }
    return {f"channels.telegram.{name}": value for name, value in table.items()}


def with_discord(server: DiscordServer, **more: Any) -> dict[str, Any]:
    """Switch the adapter on, for everyone, with quick sweeps."""
    table = {
        "enabled": True,
        "token": server.token,
        "api_base_url": server.api_base_url,
        "sweep_s": 2,
        "direct": "open",
        "groups": "all",
        "group_allow": ["*"],
        "stream": False,
        **more,
    }
    return {f"channels.discord.{name}": value for name, value in table.items()}


class Talk:
    """A gateway with a platform and a model server, of which each request can be looked at."""

    def __init__(self, server: TelegramServer | DiscordServer, model: ModelServer, **how: Any) -> None:
        """``how`` is how messages are written that say nothing else."""
        self.server: Any = server
        self.model = model
        self._how = how

    async def asked(self, chat: Any, text: str = "", **how: Any) -> str:
        """Write a message; return the text of the newest user message that the model was given for it."""
        before = len(self.model.seen)
        self.server.write(chat, text, **self._how | how)
        await self.model.finished(before + 1)
        # The parts of the context that change stand above the message.
        return self.model.seen[before].text.rpartition("</gateway-context>")[2].strip()


@asynccontextmanager
async def apart(
    workspace: Path, broker: Broker, name: str, config: dict[str, Any]
) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Run the session daemon and the adapters in processes of their own: (session, channels)."""
    whole = on(broker, name, partitions=4, **config)
    async with (
        Daemon(workspace, role="session", config=whole) as session,
        Daemon(workspace, role="channels", config=whole) as channels,
    ):
        yield session, channels


class Tap:
    """A queue of our own behind the inbound exchange: everything that the broker accepted comes here, too."""

    def __init__(self, channel: Any, queue: Any) -> None:
        self._channel = channel
        self._queue = queue
        self.ids: list[str] = []

    async def drain(self) -> list[str]:
        """Take what has come; return the ids of all messages so far, in the order of the broker."""
        while (letter := await self._queue.get(fail=False, no_ack=True)) is not None:
            if "probe" not in letter.headers:
                self.ids.append(json.loads(letter.body)["id"])
        return self.ids


@asynccontextmanager
async def tapped(broker: Broker, name: str) -> AsyncIterator[Tap]:
    """Listen at the inbound exchange, which exists once a daemon was ready."""
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(f"{name}.inbound", ensure=False)
        queue = await channel.declare_queue(f"tap.{name}", durable=True)
        for slot in range(256):
            await queue.bind(exchange, f"{slot:03d}")
        yield Tap(channel, queue)
        await queue.delete(if_unused=False, if_empty=False)


async def told(workspace: Path, *verb: str) -> str:
    """Run a verb of the command line in a process of its own; return what it printed."""
    code, printed = await command(workspace, *verb)
    assert code == 0, printed
    return printed
