"""How messages get to a gateway that dies again and again, and what comes back: over HTTP and a platform."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx

from gateway.http.client import stream_lines
from tests.chaos.over_telegram import OverTelegram
from tests.chaos.pieces import answered_by
from tests.chaos.records import Message as Written
from tests.chaos.records import Reply, Sent
from tests.chaos.stub_telegram import TOKEN, StubTelegram
from tests.disk.account import Message
from tests.support.harness import Daemon

# Those who write over HTTP, and those who do over the platform.
WEB = ("ann", "bob", "cy", "dee")
ELSEWHERE = ("eve", "finn")
CHATS = (*WEB, *ELSEWHERE)
# A piece is noted so much later at most, where many take turns on a machine.
NOTED_WITHIN_S = 10.0


class OverHttp:
    """A careful HTTP client: the same id until it is accepted, and an ear on every chat's events."""

    def __init__(self) -> None:
        self.daemon: Daemon | None = None
        self.replies: list[dict[str, Any]] = []
        # When each reply was seen first.
        self.seen_at: dict[str, float] = {}
        self._client = httpx.AsyncClient(timeout=10)

    async def put(self, chat: str, message: Message) -> None:
        body = {"chat_id": chat, "text": message.text, "id": message.id}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.post(f"{self._url()}/v1/messages", json=body)
                if answer.status_code in (200, 202):
                    return
                if answer.status_code != 503:
                    said = self.daemon.log.decode()[-20_000:] if self.daemon is not None else ""
                    raise AssertionError(f"{message.id}: {answer.status_code} {answer.text}\n{said}")
            await asyncio.sleep(0.05)

    async def remind(self, chat: str, message: Message) -> None:
        body = {"chat_id": chat, "text": message.text, "id": message.id}
        with contextlib.suppress(httpx.HTTPError):
            answer = await self._client.post(f"{self._url()}/v1/messages?wait=5", json=body)
            if answer.status_code == 200:
                self._note(message.id, answer.json()["kind"], answer.json()["reply"])

    async def parked(self) -> list[dict[str, Any]]:
        """List the letters that were set aside; there are fewer than fill a page."""
        answer = await self._client.get(f"{self._url()}/v1/parked")
        page = answer.raise_for_status().json()
        assert not page["next"]
        found: list[dict[str, Any]] = page["parked"]
        return found

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Follow the replies of all chats over every restart."""
        ears = [asyncio.create_task(self._listen(chat), name=f"listen {chat}") for chat in WEB]
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
                    async for line in stream_lines(answer):
                        if line.startswith("data:"):
                            event = json.loads(line.removeprefix("data:"))
                            self._note(event["in_reply_to"], event["kind"], event["text"])
            await asyncio.sleep(0.1)

    def _note(self, id: str, kind: str, text: str) -> None:
        message = id.removeprefix("web:")
        if kind == "reply":
            self.seen_at.setdefault(message, time.time())
        if kind in ("reply", "notice"):
            self.replies.append({"in_reply_to": message, "kind": kind, "text": text})

    def _url(self) -> str:
        return self.daemon.url if self.daemon is not None and self.daemon.url else "http://127.0.0.1:1"


class People:
    """All who write to one gateway: over HTTP, and over a platform that its adapter asks.

    ``async with People() as people`` has them listen; ``config`` is what a gateway's next life needs.
    """

    def __init__(self) -> None:
        self.platform = StubTelegram()
        self._web = OverHttp()
        self._elsewhere = OverTelegram(self.platform)
        self._asked: dict[str, Written] = {}
        self._lives = 0
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> People:
        await self._open.enter_async_context(self.platform)
        await self._open.enter_async_context(self._web.listening())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def config(self) -> dict[str, Any]:
        """Return what the adapter of one more life is told."""
        self._lives += 1
        told = {
            "enabled": True,
            "token": TOKEN,
            "direct": "open",
            "stream": False,
            "poll_timeout_s": 5,
            "base_url": self.platform.address(f"life{self._lives}"),
        }
        return {f"channels.telegram.{name}": value for name, value in told.items()}

    def listen_to(self, daemon: Daemon) -> None:
        """Write to this daemon from now on."""
        self._web.daemon = daemon

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return f"web_{chat}" if chat in WEB else self._elsewhere.stem(chat)

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it."""
        return self._elsewhere.named(id.removeprefix("web:"))

    @property
    def replies(self) -> list[dict[str, Any]]:
        """All that came back, of the platform each wording once."""
        return [
            *self._web.replies,
            *({"in_reply_to": each.message, "kind": _kind(each), "text": each.text} for each in self._shown),
        ]

    @property
    def seen_at(self) -> dict[str, float]:
        """When each reply was seen first."""
        shown = {each.message: each.at for each in reversed(self._shown) if _kind(each) == "reply"}
        return shown | self._web.seen_at

    @property
    def _shown(self) -> Sequence[Reply]:
        return self._elsewhere.replies

    async def put(self, chat: str, message: Message) -> None:
        """Write it; return when the gateway has accepted it, which the platform knows by the offset."""
        if chat in WEB:
            await self._web.put(chat, message)
            return
        # What the kit calls a stop overtakes its chat.
        kind = "new" if message.command else "plain"
        self._asked[message.id] = Written(message.id, chat, kind, message.text)
        await self._elsewhere.put(self._asked[message.id])
        while not next(
            each for each in self.platform.updates.values() if each.message == message.id
        ).confirmed:
            await asyncio.sleep(0.05)

    async def unsent(self) -> dict[str, str]:
        """Return the messages whose letters were set aside, and why: nobody knows whether they were sent."""
        return {self.named(row["id"].partition("#")[0]): row["reason"] for row in await self._web.parked()}

    async def remind(self, sent: Mapping[str, Sequence[Message]], lost: Sequence[str]) -> None:
        """Ask for replies that were told while nobody listened; the platform has heard each.

        ``lost``: findings of the checker, each of which begins with the message that it speaks of.
        """
        missing = {finding.partition(" ")[0].rstrip(":") for finding in lost}
        for chat in WEB:
            for message in sent.get(chat, ()):
                if message.id in missing:
                    await self._web.remind(chat, message)

    def repeated(self, pauses: Sequence[tuple[float, float]]) -> list[str]:
        """Find what the platform was sent again though its sender could note that it was taken.

        ``pauses``: when senders died or a disk refused, from when to when.
        """
        taken: dict[tuple[str, str], list[Sent]] = {}
        for each, message in answered_by(self.platform.sent, self._asked):
            taken.setdefault((message, each.text), []).append(each)
        return [
            f"{message} was sent its answer again, {later.at - earlier.at:.2f} s later, by {later.life}"
            for (message, _), sent in taken.items()
            for earlier, later in pairwise(sent)
            if not any(
                began < earlier.at + NOTED_WITHIN_S and earlier.at - 1 < ended and began < later.at
                for began, ended in pauses
            )
        ]


def _kind(reply: Reply) -> str:
    """Name what the platform showed; the kit knows the answers of its own model alone."""
    return "reply" if reply.text.startswith("echo: ") else reply.kind
