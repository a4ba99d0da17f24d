"""How messages get to a gateway that dies again and again, and how its replies come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx
from httpx_sse import aconnect_sse

from tests.chaos.foreign import Steady, inbound
from tests.chaos.records import Message, Parked, Reply


class Feed(Protocol):
    """How messages get to the gateway, and its replies back."""

    @property
    def replies(self) -> Sequence[Reply]:
        """All that came, repeats included."""
        ...

    @property
    def published(self) -> Mapping[str, int]:
        """How often each message was put into the queue, or may have been."""
        ...

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        ...

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it; the id itself where it is none of this way."""
        ...

    async def put(self, message: Message) -> None:
        """Return once the message is accepted."""
        ...

    async def remind(self, message: Message) -> None:
        """Ask for a reply that was told while nobody listened."""
        ...


class Served(Protocol):
    """A gateway over all its lives: where it answers HTTP, and whether it may be asked there."""

    up: asyncio.Event

    @property
    def url(self) -> str:
        """Its address; empty or dead between two lives."""
        ...


class OverHttp:
    """A careful HTTP client: the same id until it is accepted, and an ear on every chat's events."""

    def __init__(self, daemon: Served) -> None:
        self.replies: list[Reply] = []
        # What it posts again is known by its id, and put once.
        self.published: Mapping[str, int] = {}
        self._daemon = daemon
        self._client = httpx.AsyncClient(timeout=10)

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return f"web_{chat}"

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it."""
        return id.removeprefix("web:")

    async def put(self, message: Message) -> None:
        """Post it again until it is accepted."""
        body = {"chat_id": message.chat, "text": message.text, "id": message.id}
        while True:
            await self._daemon.up.wait()
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.post(f"{self._daemon.url}/v1/messages", json=body)
                if answer.status_code in (200, 202):
                    return
                if answer.status_code != 503:
                    raise AssertionError(f"{message.id}: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.02)

    async def remind(self, message: Message) -> None:
        """Post it once more, and wait for what it was answered."""
        body = {"chat_id": message.chat, "text": message.text, "id": message.id}
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.post(f"{self._daemon.url}/v1/messages?wait=5", json=body)
            if answer.status_code == 200:
                found = answer.json()
                chat = found["key"].removeprefix("web:")
                self._note(chat, message.id, found["kind"], found["reply"], asked=True)

    @asynccontextmanager
    async def listening(self, chats: Sequence[str]) -> AsyncIterator[None]:
        """Follow the replies of these chats over every restart."""
        ears = [asyncio.create_task(self._listen(chat), name=f"listen {chat}") for chat in chats]
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
            await self._daemon.up.wait()
            with contextlib.suppress(httpx.HTTPError):
                where = f"{self._daemon.url}/v1/events"
                async with aconnect_sse(
                    self._client, "GET", where, params=params, timeout=patience
                ) as source:
                    async for sse in source.aiter_sse():
                        # Where the stream begins there is an id alone.
                        if sse.data:
                            event = json.loads(sse.data)
                            answers, text = event.get("in_reply_to"), event.get("text", "")
                            self._note(chat, answers, event["kind"], text)
            await asyncio.sleep(0.02)

    def _note(self, chat: str, id: str | None, kind: str, text: str, *, asked: bool = False) -> None:
        if kind in ("reply", "notice") and id:
            self.replies.append(Reply(self.named(id), chat, kind, text, time.time(), asked))


class OverRabbit:
    """A foreign program on the broker."""

    def __init__(self, steady: Steady) -> None:
        self._steady = steady

    @property
    def replies(self) -> list[Reply]:
        """All that came, in the order in which they were put."""
        came = zip(self._steady.replies, self._steady.times, strict=True)
        return [
            Reply(str(body.get("in_reply_to") or ""), _chat(body), body["kind"], body["text"], at)
            for body, at in came
        ]

    @property
    def published(self) -> Mapping[str, int]:
        """How often each was said."""
        return self._steady.published

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return f"foreign_{chat}"

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it: the same."""
        return id

    async def put(self, message: Message) -> None:
        """Publish it until the broker confirms."""
        await self._steady.put(inbound(f"foreign:{message.chat}", message.id, message.text))

    async def remind(self, message: Message) -> None:
        """Wait: each reply stays in its queue until it is taken."""


async def parked(url: str, named: Callable[[str], str], within_s: float) -> list[Parked]:
    """List what a gateway has set aside, by the messages that ``named`` finds behind its ids."""
    found: list[Parked] = []
    async with asyncio.timeout(within_s), httpx.AsyncClient(timeout=60) as client:
        where = ""
        while True:
            answer = await client.get(f"{url}/v1/parked", params={"cursor": where} if where else {})
            if answer.status_code == 503:
                # Its broker has only just come up, or is busy.
                await asyncio.sleep(0.2)
                continue
            page = answer.raise_for_status().json()
            for row in page["parked"]:
                message = named(row["id"].partition("#")[0])
                found.append(Parked(message, row["reason"], row["box"] == "inbound"))
            if not (where := page["next"]):
                return found


def _chat(body: Mapping[str, Any]) -> str:
    """Return the chat that a foreign program would deliver to; both names where its key is of another."""
    chat, key = str(body["chat_id"]), str(body["key"])
    return chat if key == f"foreign:{chat}" else f"{chat} ({key})"
