"""All who write to a gateway on a failing disk, and what its configuration says of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tests.chaos.feed import OverHttp, OverTelegram, Post
from tests.chaos.records import CHATS, Message
from tests.chaos.stub_telegram import ELSEWHERE, TOKEN, StubTelegram
from tests.support.harness import Daemon

WEB = tuple(chat for chat in CHATS if chat not in ELSEWHERE)


class People(Post):
    """``async with People() as people`` has them listen; each life of a gateway is ``listened_to``."""

    def __init__(self) -> None:
        self.platform = StubTelegram()
        self.up = asyncio.Event()
        self._daemon: Daemon | None = None
        self._web = OverHttp(self)
        elsewhere = dict.fromkeys(ELSEWHERE, OverTelegram(self.platform))
        super().__init__(dict.fromkeys(WEB, self._web) | elsewhere, frozenset())
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> People:
        await self._open.enter_async_context(self.platform)
        await self._open.enter_async_context(self._web.listening(WEB))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def config(self, life: str) -> dict[str, Any]:
        told = {
            "enabled": True,
            "token": TOKEN,
            "direct": "open",
            "stream": False,
            "poll_timeout_s": 5,
            "base_url": self.platform.address(life),
        }
        return {f"channels.telegram.{name}": value for name, value in told.items()}

    def listen_to(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.up.set()

    @property
    def url(self) -> str:
        """Where the daemon of now answers HTTP; empty until it does."""
        return self._daemon.url if self._daemon is not None else ""

    async def put(self, message: Message) -> None:
        """Write it; return when the gateway has accepted it, which the platform knows by the offset."""
        await super().put(message)
        while message.id in self.platform.waiting_messages:
            await asyncio.sleep(0.05)

    async def said(self, *words: Message) -> None:
        for message in words:
            await self.put(message)
