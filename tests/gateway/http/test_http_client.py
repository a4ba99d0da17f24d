"""The client of our own API looks on: what it reads of a stream, and where it goes on from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cli.conversation import look_on
from gateway.dispatch.events import Event, read_event
from gateway.http import client as http_client
from gateway.http.client import Client
from tests.gateway.http_place import open_place
from tests.support.ports import KeptPort
from tests.support.until import until

KEY = "cli:direct"
# What str.splitlines takes for the end of a line, and JSON leaves as it is.
ODD = ("two\u2028lines", "two\u2029paragraphs", "a\u0085next line")


async def test_an_answer_with_any_character_is_seen(tmp_path: Path) -> None:
    """An event is one line, whatever its text has."""
    async with open_place(tmp_path) as place, Client(place.server.url) as client:
        seen: list[Event] = []
        looking = asyncio.create_task(look_on(client, KEY, seen.append))
        await until(lambda: place.application.events.watched(KEY))
        for number, text in enumerate((*ODD, "plain")):
            await client.ask(KEY, text, str(number))
        await until(lambda: _told(seen)[-1:] == ["echo: plain"])
        looking.cancel()

    assert _told(seen) == [f"echo: {text}" for text in (*ODD, "plain")]


async def test_what_was_told_before_a_first_reply_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked on when the gateway went away sees what it told before it could be reached again."""
    read: list[str] = []

    def noted(data: str) -> Event | None:
        read.append(data)
        return read_event(data)

    monkeypatch.setattr(http_client, "read_event", noted)
    with KeptPort() as port:
        here = {"port": port}
        async with Client(f"http://127.0.0.1:{port}/") as client:
            seen: list[Event] = []
            async with open_place(tmp_path, http=here) as place:
                await client.ask(KEY, "before", "one")
                looking = asyncio.create_task(look_on(client, KEY, seen.append))
                await until(lambda: place.application.events.watched(KEY))
                # From here on it knows where to go on.
                await until(lambda: bool(read))
            async with open_place(tmp_path) as elsewhere, Client(elsewhere.server.url) as other:
                await other.ask(KEY, "meanwhile", "two")
            async with open_place(tmp_path, http=here) as place:
                await until(lambda: place.application.events.watched(KEY))
                await client.ask(KEY, "after", "three")
                await until(lambda: _told(seen)[-1:] == ["echo: after"])
            looking.cancel()

    assert _told(seen) == ["echo: meanwhile", "echo: after"]


def _told(seen: list[Event]) -> list[str]:
    return [event.text for event in seen if event.kind == "reply"]
