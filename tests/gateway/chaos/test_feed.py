"""How replies come back from a gateway that is under torment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from gateway.chaos.feed import OverHttp
from gateway.chaos.records import Message
from tests.gateway.http_place import open_place
from tests.support.until import until


@dataclass
class Here:
    """A gateway that lives."""

    url: str
    up: asyncio.Event = field(default_factory=asyncio.Event)


async def test_a_reply_with_any_character_comes_back(tmp_path: Path) -> None:
    """What ends a line for people ends no event."""
    async with open_place(tmp_path) as place:
        here = Here(place.server.url.rstrip("/"))
        here.up.set()
        feed = OverHttp(here)  # type: ignore[arg-type]
        async with feed.listening(["ann"]):
            await until(lambda: place.application.events.watched("web:ann"))
            await feed.put(Message("one", "ann", "plain", "two\u2028lines"))
            await feed.put(Message("two", "ann", "plain", "a\u0085next"))
            await feed.put(Message("three", "ann", "plain", "plain"))
            await until(lambda: [reply for reply in feed.replies if reply.message == "three"])

    assert [reply.text for reply in feed.replies] == [
        "echo: two\u2028lines",
        "echo: a\u0085next",
        "echo: plain",
    ]
