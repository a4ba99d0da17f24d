"""How replies come back from a gateway that is under torment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.feed import OverHttp, OverRabbit
from tests.chaos.foreign import Steady
from tests.chaos.records import Message
from tests.gateway.http_place import open_place
from tests.support.until import until


@dataclass
class Here:
    """A gateway that lives."""

    url: str
    up: asyncio.Event = field(default_factory=asyncio.Event)


async def test_a_reply_with_any_character_comes_back(tmp_path: Path) -> None:
    """What ends a line for people ends no event; and it is known which chat was told."""
    async with open_place(tmp_path) as place:
        here = Here(place.server.url.rstrip("/"))
        here.up.set()
        feed = OverHttp(here)
        async with feed.listening(["ann", "bob"]):
            await until(lambda: place.application.events.watched("web:ann"))
            await until(lambda: place.application.events.watched("web:bob"))
            await feed.put(Message("one", "ann", "plain", "two\u2028lines"))
            await feed.put(Message("two", "ann", "plain", "a\u0085next"))
            await feed.put(Message("three", "ann", "plain", "plain"))
            await until(lambda: [reply for reply in feed.replies if reply.message == "three"])
            await feed.put(Message("four", "bob", "plain", "plain"))
            await until(lambda: [reply for reply in feed.replies if reply.message == "four"])
            await feed.remind(Message("four", "bob", "plain", "plain"))

    assert [(reply.message, reply.chat, reply.asked) for reply in feed.replies[3:]] == [
        ("four", "bob", False),
        ("four", "bob", True),
    ]
    assert [reply.text for reply in feed.replies if reply.chat == "ann"] == [
        "echo: two\u2028lines",
        "echo: a\u0085next",
        "echo: plain",
    ]


def test_a_reply_over_the_broker_names_its_chat() -> None:
    """The one by which a foreign program delivers it, and its key where that is of another."""
    steady = Steady("amqp://nowhere")
    body = {"kind": "reply", "in_reply_to": "ann-00001", "text": "hello"}
    for chat, key in (("ann", "foreign:ann"), ("bob", "foreign:bob"), ("ann", "foreign:bob")):
        steady.replies.append({**body, "chat_id": chat, "key": key})
        steady.times.append(1.0)

    assert [reply.chat for reply in OverRabbit(steady).replies] == ["ann", "bob", "ann (foreign:bob)"]
