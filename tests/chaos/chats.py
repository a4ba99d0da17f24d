"""People who write to the gateway: each chat one message after the other, whether or not anybody lives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from tests.chaos.post import Post
from tests.chaos.records import CHATS, Message

# Of people whose platform takes a long answer in pieces alone, one in twelve messages asks for such.
_LONG = {"long": 4}
_KINDS = {"plain": 24, "read": 6, "write": 6, "slow": 3, "stop": 3, "new": 2, "poison": 1}


class Chats:
    """Six of them; ``sent`` has the messages of each in the order in which they are put.

    ``long`` are those who ask for long answers, too.
    """

    def __init__(self, feed: Post, dice: random.Random, *, long: Collection[str] = ()) -> None:
        self.sent: dict[str, list[Message]] = {chat: [] for chat in CHATS}
        self._feed, self._long = feed, long
        self._dice = dice
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
            kinds = _KINDS | (_LONG if chat in self._long else {})
            kind = self._dice.choices(list(kinds), list(kinds.values()))[0]
            for each in ("slow", "stop") if kind == "stop" else (kind,):
                self._waiting[chat].put_nowait(self._message(chat, each))

    async def accepted(self) -> None:
        """Return when all that was planned is accepted."""
        for waiting in self._waiting.values():
            await waiting.join()

    async def _write(self, chat: str) -> None:
        while True:
            message = await self._waiting[chat].get()
            self.sent[chat].append(message)
            await self._feed.put(message)
            self._waiting[chat].task_done()

    def _message(self, chat: str, kind: str) -> Message:
        self._number += 1
        name = f"{chat}-{self._number:05d}"
        write = f'[[tool:write {{"path": "{name}.txt", "content": "x"}}]]'
        delay = f"[[delay:{self._dice.uniform(0.01, 0.1):.2f}]]" if self._dice.random() < 0.3 else ""
        texts = {
            "plain": f"{name} hello {delay}",
            "read": f'{name} look [[tool:ls {{"path": "."}}]]{delay}',
            "write": f"{name} write {write}{delay}",
            "long": f"{name} tell [[long:90]]",
            "slow": f"{name} slowly [[delay:0.7]]",
            "poison": f"{name} refused [[refuse]]",
            "stop": "/stop",
            "new": "/new",
        }
        return Message(name, chat, kind, texts[kind])
