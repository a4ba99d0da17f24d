"""How messages get to a gateway that dies again and again, and what comes back: over HTTP and a platform."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tests.chaos.feed import OverHttp, parked
from tests.chaos.over_telegram import OverTelegram
from tests.chaos.pieces import answered_by
from tests.chaos.records import Message, Reply, Sent
from tests.chaos.stub_telegram import TOKEN, StubTelegram
from tests.support.harness import Daemon

# Those who write over HTTP, and those who do over the platform.
WEB = ("ann", "bob", "cy", "dee")
ELSEWHERE = ("eve", "finn")
CHATS = (*WEB, *ELSEWHERE)
# A piece is noted so much later at most, where many take turns on a machine.
NOTED_WITHIN_S = 10.0
PARKED_WITHIN_S = 60.0


class People:
    """All who write to one gateway: over HTTP, and over a platform that its adapter asks.

    ``async with People() as people`` has them listen; ``config`` is what a gateway's next life needs.
    """

    def __init__(self) -> None:
        self.platform = StubTelegram()
        self.up = asyncio.Event()
        self._daemon: Daemon | None = None
        self._web = OverHttp(self)
        self._elsewhere = OverTelegram(self.platform)
        self._asked: dict[str, Message] = {}
        self._lives = 0
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> People:
        await self._open.enter_async_context(self.platform)
        await self._open.enter_async_context(self._web.listening(WEB))
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
        self._daemon = daemon
        self.up.set()

    @property
    def url(self) -> str:
        """Where the daemon of now answers HTTP; empty until it does."""
        return self._daemon.url if self._daemon is not None else ""

    def stem(self, chat: str) -> str:
        """Return the name of the chat's files."""
        return (self._web if chat in WEB else self._elsewhere).stem(chat)

    def named(self, id: str) -> str:
        """Return the message behind the gateway's id for it."""
        return self._elsewhere.named(self._web.named(id))

    @property
    def replies(self) -> list[Reply]:
        """All that came back, of the platform each wording once."""
        shown = (replace(each, kind=_kind(each)) for each in self._elsewhere.replies)
        return [*self._web.replies, *shown]

    @property
    def seen_at(self) -> dict[str, float]:
        """When each reply was seen first."""
        return {each.message: each.at for each in reversed(self.replies) if each.kind == "reply"}

    async def put(self, message: Message) -> None:
        """Write it; return when the gateway has accepted it, which the platform knows by the offset."""
        if message.chat in WEB:
            try:
                await self._web.put(message)
            except AssertionError as error:
                error.add_note(self._daemon.log.decode()[-20_000:] if self._daemon is not None else "")
                raise
            return
        # What the kit calls a stop overtakes its chat.
        self._asked[message.id] = replace(message, kind="new" if message.command else "plain")
        await self._elsewhere.put(self._asked[message.id])
        while not next(
            each for each in self.platform.updates.values() if each.message == message.id
        ).confirmed:
            await asyncio.sleep(0.05)

    async def unsent(self) -> dict[str, str]:
        """Return the messages whose letters were set aside, and why: nobody knows whether they were sent."""
        return {each.id: each.reason for each in await parked(self.url, self.named, PARKED_WITHIN_S)}

    async def remind(self, sent: Mapping[str, Sequence[Message]], lost: Sequence[str]) -> None:
        """Ask for replies that were told while nobody listened; the platform has heard each.

        ``lost``: findings of the checker, each of which begins with the message that it speaks of.
        """
        missing = {finding.partition(" ")[0].rstrip(":") for finding in lost}
        for chat in WEB:
            for message in sent.get(chat, ()):
                if message.id in missing:
                    await self._web.remind(message)

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
