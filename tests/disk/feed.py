"""How messages get to a gateway that dies again and again, and how its replies come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.disk.account import Message
from tests.support.harness import Daemon

CHATS = ("ann", "bob", "cy", "dee")


class OverHttp:
    """A careful HTTP client: the same id until it is accepted, and an ear on every chat's events."""

    prefix = "web:"

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
