"""Targets that read what platforms send: an update of Telegram, an event of Discord, each to its letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from channels.base import Arrival
from channels.discord import messages
from channels.discord.messages import DiscordBot, Location
from channels.tables import Platform
from channels.telegram.updates import TelegramBot, read
from tests.fuzz.targets import Once, Target, folder
from tests.gateway.inbound.reception_front import Front, front

OPEN = Platform(direct="open", allow_from=("*",), group_allow=("*",), groups="all")
TELEGRAM = TelegramBot(7, "robin_bot")
DISCORD = DiscordBot("7", frozenset({"71"}))
PLACES = (Location("5"), Location("6", "9"))
Read = Callable[[Mapping[str, Any]], Iterator[object]]


async def _fetched(_: str) -> AsyncIterator[bytes]:
    yield b"bytes"


def _of_telegram(raw: Mapping[str, Any]) -> Iterator[object]:
    yield read(raw, TELEGRAM, _fetched)


def _of_discord(raw: Mapping[str, Any]) -> Iterator[object]:
    for place in PLACES:
        yield messages.read_message(raw, DISCORD, place, _fetched)
        yield messages.read_edit(raw, DISCORD, place)
        yield from messages.read_deletion(raw, place, person="3")
    yield messages.read_interaction(raw, deferred=True)


def _target(name: str, read_all: Read) -> Target:
    @contextmanager
    def opened() -> Iterator[Once]:
        with folder() as place, asyncio.Runner() as runner:
            held = front(place, OPEN)
            reception = runner.run(held.__aenter__())
            try:
                yield lambda data: runner.run(_received(reception, read_all, data))
            finally:
                runner.run(held.__aexit__(None, None, None))

    return Target(name, opened, form="json")


async def _received(place: Front, read_all: Read, data: bytes) -> None:
    """What is no object the client's library refuses; all else ends as a sound letter, or as nothing."""
    raw = None
    with suppress(ValueError, RecursionError):
        raw = json.loads(data)
    if isinstance(raw, dict):
        for arrival in read_all(raw):
            if isinstance(arrival, Arrival):
                await place.accept(arrival)
        await place.inbound()


TARGETS = {
    target.name: target for target in (_target("telegram", _of_telegram), _target("discord", _of_discord))
}
