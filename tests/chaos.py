"""Kills and cuts at random while messages flow, then checks every guarantee: ``make chaos N=20``.

Each cycle starts a whole gateway and feeds several chats with plain messages, tool calls, ``/new`` and
``/stop``. Then the gateway dies: at a random named point (``tests/killable.py``) or by SIGKILL at a random
instant. Over RabbitMQ the broker is killed now and then, or all connections to it are cut. The next cycle goes
on with the same workspace. At the end everything may come to rest, and is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.broker import Broker
from tests.chaos_check import Account, Message, check
from tests.harness import Daemon, Steady, command, inbound
from tests.model_server import ModelServer
from tests.proxy import Proxy

CHATS = ("ann", "bob", "cy", "dee")
POINTS = {  # and the highest number of the passage at which one dies there
    "append": 8,
    "fdatasync": 14,
    "ask": 8,
    "tool": 3,
    "settle": 8,
    "journal": 3,
    "checkpoint": 3,
    "history": 2,
    "notes": 2,
    "desk": 6,
}
RABBIT_POINTS = {"publish": 10, "ack": 8}
KINDS = {"plain": 10, "read": 3, "write": 3, "slow": 2, "stop": 2, "new": 1}
PER_CYCLE = (2, 5)
PATIENCE_S = 12.0  # for a point to be reached
REST_S = 240.0


class Feed(Protocol):
    """How messages get to the gateway, and its replies back."""

    channel: str
    prefix: str
    ordered: bool

    @property
    def replies(self) -> Sequence[Mapping[str, Any]]:
        """All that came, repeats included."""
        ...

    async def put(self, chat: str, message: Message) -> None:
        """Return once the message is accepted."""
        ...

    async def remind(self, chat: str, message: Message) -> None:
        """Ask for a reply that was told while nobody listened."""
        ...


class OverHttp:
    """A careful HTTP client: the same id until it is accepted, and an ear on every chat's events."""

    channel, prefix, ordered = "web", "web:", False

    def __init__(self) -> None:
        self.daemon: Daemon | None = None
        self.replies: list[dict[str, Any]] = []
        self._client = httpx.AsyncClient(timeout=10)

    async def put(self, chat: str, message: Message) -> None:
        body = {"chat_id": chat, "text": message.text, "id": message.id}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.post(f"{self._url()}/v1/messages", json=body)
                if answer.status_code in (200, 202):
                    return
                if answer.status_code != 503:
                    raise AssertionError(f"{message.id}: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.05)

    async def remind(self, chat: str, message: Message) -> None:
        body = {"chat_id": chat, "text": message.text, "id": message.id}
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.post(f"{self._url()}/v1/messages?wait=5", json=body)
            if answer.status_code == 200:
                self._note(message.id, answer.json()["kind"], answer.json()["reply"])

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Follow the replies of all chats over every restart."""
        ears = [asyncio.create_task(self._listen(chat), name=f"listen {chat}") for chat in CHATS]
        try:
            yield
        finally:
            for ear in ears:
                ear.cancel()
            await asyncio.wait(ears)
            await self._client.aclose()

    async def _listen(self, chat: str) -> None:
        params, patience = {"key": f"web:{chat}"}, httpx.Timeout(10, read=60)
        while True:
            with contextlib.suppress(httpx.HTTPError):
                where = f"{self._url()}/v1/events"
                async with self._client.stream("GET", where, params=params, timeout=patience) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("data:"):
                            event = json.loads(line.removeprefix("data:"))
                            self._note(event["in_reply_to"], event["kind"], event["text"])
            await asyncio.sleep(0.1)

    def _note(self, id: str, kind: str, text: str) -> None:
        if kind in ("reply", "notice"):
            self.replies.append({"in_reply_to": id, "kind": kind, "text": text})

    def _url(self) -> str:
        return self.daemon.url if self.daemon is not None and self.daemon.url else "http://127.0.0.1:1"


class OverRabbit:
    """A foreign program on the broker."""

    channel, prefix, ordered = "foreign", "", True

    def __init__(self, steady: Steady) -> None:
        self._steady = steady

    @property
    def replies(self) -> Sequence[Mapping[str, Any]]:
        return self._steady.replies

    async def put(self, chat: str, message: Message) -> None:
        await self._steady.put(inbound(f"foreign:{chat}", message.id, message.text))

    async def remind(self, chat: str, message: Message) -> None:
        """Its replies wait in their queue."""


class Chats:
    """People who write: each chat one message after the other, whether or not the gateway lives."""

    def __init__(self, feed: Feed, dice: random.Random) -> None:
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._feed = feed
        self._dice = dice
        self._number = 0

    async def write(self) -> None:
        """Write a few messages in every chat; return when all are accepted."""
        async with asyncio.TaskGroup() as group:
            for chat in CHATS:
                group.create_task(self._write(chat, self._dice.randint(*PER_CYCLE)))

    async def _write(self, chat: str, count: int) -> None:
        for _ in range(count):
            kind = self._dice.choices(list(KINDS), list(KINDS.values()))[0]
            for each in ("slow", "stop") if kind == "stop" else (kind,):
                message = self._message(chat, each)
                self.sent[chat].append(message)
                await self._feed.put(chat, message)
                await asyncio.sleep(self._dice.uniform(0, 0.6))

    def _message(self, chat: str, kind: str) -> Message:
        self._number += 1
        id = f"{chat}-{self._number:04d}"
        write = f'[[tool:write {{"path": "{id}.txt", "content": "x"}}]]'
        texts = {
            "plain": f"{id} hello",
            "read": f'{id} [[tool:ls {{"path": "."}}]]',
            "write": f"{id} {write}",
            "slow": f"{id} [[delay:1]]",
            "stop": "/stop",
            "new": "/new",
        }
        return Message(id, kind, texts[kind])


@dataclass
class Harm:
    """What was done to it."""

    deaths: Counter[str] = field(default_factory=Counter)
    kills: list[float] = field(default_factory=list)  # when a daemon was seen dead
    broker_kills: int = 0
    cuts: int = 0


class Chaos:
    """One run of the kit in a folder of its own."""

    def __init__(self, kind: str, *, cycles: int, seed: int, folder: Path) -> None:
        self.harm = Harm()
        self.workspace = folder / "workspace"
        self.log = folder / "daemon.log"
        self._kind = kind
        self._cycles = cycles
        self._dice = random.Random(seed)
        self._config: dict[str, Any] = {
            "model.name": "openai/stub",
            "memory.window": 12,
            "limits.attempts": 1000,  # many deaths are not the letters' fault here
            "limits.background_calls_per_hour": 100_000,
            "limits.background_calls_per_day": 100_000,
        }

    async def run(self) -> Account:
        """Do all cycles, let it come to rest, and check."""
        async with ModelServer() as model:
            self._config["model.api_base"] = model.url
            if self._kind == "embedded":
                feed = OverHttp()
                async with feed.listening():
                    return await self._all(feed, model, None, None)
            with Broker() as broker:
                async with Proxy(broker.port) as proxy, Steady(broker.url) as steady:
                    self._config["broker.url"] = broker.url.replace(str(broker.port), str(proxy.port))
                    self._config["broker.partitions"] = 2
                    return await self._all(OverRabbit(steady), model, broker, proxy)

    async def _all(
        self, feed: OverHttp | OverRabbit, model: ModelServer, broker: Broker | None, proxy: Proxy | None
    ) -> Account:
        chats = Chats(feed, self._dice)
        for number in range(self._cycles):
            writing = asyncio.create_task(chats.write(), name="chats")
            how = await self._cycle(feed, broker, proxy)
            print(f"  cycle {number + 1}: {how}", flush=True)
            if number % 2 or number + 1 == self._cycles:
                continue_without = self._daemon(feed)
                async with continue_without:
                    await writing
                    await self._died(continue_without, "killed when all was accepted")
            else:
                await self._until_written(feed, writing)
        async with self._daemon(feed) as daemon:
            account = await self._rest(feed, chats, model)
            code = await daemon.stop()
            self._keep(daemon)
        if code != 0:
            account.illegal.append(f"the last daemon ended with {code}")
        _, verified = await command(self.workspace, "sessions", "verify", "--json")
        account.illegal += [str(row) for row in json.loads(verified)]
        return account
