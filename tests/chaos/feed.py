"""How messages get to a gateway that dies again and again, and how its replies come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from tests.chaos.pieces import told
from tests.chaos.records import Message, Parked, Reply
from tests.chaos.stub_telegram import BOT, StubTelegram, chat_id
from tests.support.foreign import Steady, inbound


class Post:
    """All the ways by which people write, each chat by its own; each way has the same methods.

    ``replies`` is all that came, repeats included, ``published`` how often each message was put into the
    queue, or may have been. ``stem`` names the files of a chat, ``named`` finds the message behind the
    gateway's id for it, or returns an id that is none of this way. ``put`` returns once the message is
    accepted, ``remind`` asks for a reply that was told while nobody listened. ``ordered`` are the chats whose
    replies come as they were put.
    """

    def __init__(self, feeds: Mapping[str, Any], ordered: frozenset[str]) -> None:
        self.ordered = ordered
        self._feeds = feeds
        self._all = list(dict.fromkeys(feeds.values()))

    @property
    def replies(self) -> list[Reply]:
        return [reply for feed in self._all for reply in feed.replies]

    @property
    def published(self) -> Mapping[str, int]:
        return {one: times for feed in self._all for one, times in feed.published.items()}

    def stem(self, chat: str) -> str:
        return self._feeds[chat].stem(chat)

    def named(self, id: str) -> str:
        return next((name for feed in self._all if (name := feed.named(id)) != id), id)

    async def put(self, message: Message) -> None:
        await self._feeds[message.chat].put(message)

    async def remind(self, message: Message) -> None:
        await self._feeds[message.chat].remind(message)


class OverHttp:
    """A careful HTTP client: the same id until it is accepted, and an ear on every chat's events.

    ``daemon`` has the address of a gateway over its lives (``url``), and whether it may be asked (``up``).
    """

    def __init__(self, daemon: Any) -> None:
        self.replies: list[Reply] = []
        # What it posts again is known by its id, and put once.
        self.published: Mapping[str, int] = {}
        self._daemon = daemon
        self._client = httpx.AsyncClient(timeout=10)

    def stem(self, chat: str) -> str:
        return f"web_{chat}"

    def named(self, id: str) -> str:
        return id.removeprefix("web:")

    async def put(self, message: Message) -> None:
        while True:
            await self._daemon.up.wait()
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._post(message, "")
                if answer.status_code in (200, 202):
                    return
                if answer.status_code != 503:
                    raise AssertionError(f"{message.id}: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.02)

    async def remind(self, message: Message) -> None:
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._post(message, "?wait=5")
            if answer.status_code == 200:
                found = answer.json()
                chat = found["key"].removeprefix("web:")
                self._note(chat, message.id, found["kind"], found["reply"], asked=True)

    async def _post(self, message: Message, query: str) -> httpx.Response:
        body = {"chat_id": message.chat, "text": message.text, "id": message.id}
        return await self._client.post(f"{self._daemon.url}/v1/messages{query}", json=body)

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
    """A foreign program on the broker: each reply stays in its queue until it is taken."""

    def __init__(self, steady: Steady) -> None:
        self._steady = steady

    @property
    def replies(self) -> list[Reply]:
        came = zip(self._steady.replies, self._steady.times, strict=True)
        return [
            Reply(str(body.get("in_reply_to") or ""), _chat(body), body["kind"], body["text"], at)
            for body, at in came
        ]

    @property
    def published(self) -> Mapping[str, int]:
        return self._steady.published

    def stem(self, chat: str) -> str:
        return f"foreign_{chat}"

    def named(self, id: str) -> str:
        return id

    async def put(self, message: Message) -> None:
        await self._steady.put(inbound(f"foreign:{message.chat}", message.id, message.text))

    async def remind(self, message: Message) -> None:
        pass


def _chat(body: Mapping[str, Any]) -> str:
    """Return the chat that a foreign program would deliver to; both names where its key is of another."""
    chat, key = str(body["chat_id"]), str(body["key"])
    return chat if key == f"foreign:{chat}" else f"{chat} ({key})"


class OverTelegram:
    """People who write over the stub platform, and what they are shown, its pieces put together."""

    def __init__(self, platform: StubTelegram) -> None:
        self.published: Mapping[str, int] = {}
        self._platform = platform
        self._messages: dict[str, Message] = {}

    @property
    def replies(self) -> Sequence[Reply]:
        return told(self._platform.sent, self._messages)

    def stem(self, chat: str) -> str:
        return f"telegram_{chat_id(chat)}"

    def named(self, id: str) -> str:
        _, _, number = id.rpartition(":")
        update = self._platform.updates.get(int(number)) if number.isdecimal() else None
        return update.message if update is not None and id.startswith(f"telegram:{BOT['id']}:") else id

    async def put(self, message: Message) -> None:
        """Write it, once a bot has been there; from then on it is the platform's to hand it out."""
        await self._platform.polled.wait()
        self._messages[message.id] = message
        await self._platform.write(message.chat, message.id, message.text)

    async def remind(self, message: Message) -> None:
        pass


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
