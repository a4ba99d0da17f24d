"""People who write to the gateway: each chat one message after the other, whether or not anybody lives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.feed import Post
from tests.chaos.records import CHATS, Message
from tests.chaos.stub_telegram import ELSEWHERE

# Of people whose platform takes a long answer in pieces alone, one in twelve messages asks for such.
_LONG = {"long": 4}
_KINDS = {"plain": 24, "read": 6, "write": 6, "slow": 3, "stop": 3, "new": 2, "poison": 1}


class Chats:
    """Six of them; ``sent`` has the messages of each in the order in which they are put."""

    def __init__(self, feed: Post, dice: random.Random) -> None:
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._feed, self._dice = feed, dice
        self._number = 0
        self._waiting: dict[str, asyncio.Queue[Message]] = {chat: asyncio.Queue() for chat in CHATS}

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what is planned, for as long as the block runs."""
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(self._write(chat), name=f"chat {chat}") for chat in CHATS]
            yield
            for writer in writers:
                writer.cancel()

    def plan(self, count: int) -> None:
        """Let people write so many messages more."""
        for _ in range(count):
            chat = self._dice.choice(CHATS)
            kinds = _KINDS | (_LONG if chat in ELSEWHERE else {})
            kind = self._dice.choices(list(kinds), list(kinds.values()))[0]
            for each in ("slow", "stop") if kind == "stop" else (kind,):
                delay = f"[[delay:{self._dice.uniform(0.01, 0.1):.2f}]]" if self._dice.random() < 0.3 else ""
                self._number += 1
                self._waiting[chat].put_nowait(message_of(chat, each, self._number, delay))

    async def accepted(self) -> None:
        for waiting in self._waiting.values():
            await waiting.join()

    async def _write(self, chat: str) -> None:
        while True:
            message = await self._waiting[chat].get()
            self.sent[chat].append(message)
            await self._feed.put(message)
            self._waiting[chat].task_done()


def message_of(chat: str, kind: str, number: int, more: str = "") -> Message:
    """Return a message of that kind; ``more`` stands at the end of those that are answered at once."""
    name = f"{chat}-{number:05d}"
    texts = {
        "plain": f"{name} hello {more}",
        "read": f'{name} look [[tool:ls {{"path": "."}}]]{more}',
        "write": f'{name} write [[tool:write {{"path": "{name}.txt", "content": "x"}}]]{more}',
        "long": f"{name} tell [[long:90]]",
        "slow": f"{name} slowly [[delay:0.7]]",
        "poison": f"{name} refused [[refuse]]",
    }
    return Message(name, chat, kind, texts.get(kind, f"/{kind}").strip())
