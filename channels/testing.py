"""A platform in memory with its adapter, and the contract that every adapter must keep."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from channels.base import Arrival, Chunk, Emit, Rendered
from channels.contract import DEADLINE_S, Break, ChannelContract, FarSide, Received, Shown, receiving
from channels.errors import (
    ChannelDown,
    ChatMoved,
    MessageGone,
    SendLater,
    SendNever,
    SendUnknown,
)

__all__ = [
    "Break",
    "ChannelContract",
    "FakeChannel",
    "FakePlatform",
    "FarSide",
    "Received",
    "Shown",
    "receiving",
]

ADA = "ada"


class FakePlatform:
    """A platform in memory; what happens to it is kept while adapters come and go.

    Args:
        remembers: whether it recognises a chunk that is sent again with the same nonce.
    """

    def __init__(self, chat_id: str = ADA, *, remembers: bool = False) -> None:
        self.chat_id = chat_id
        self.remembers = remembers
        self.messages: dict[str, Shown] = {}
        self.chunks: list[Chunk] = []
        # What each file held that was accepted, by the id of its message.
        self.files: dict[str, bytes] = {}
        self.edits: list[tuple[str, str]] = []
        self.typings: list[str] = []
        self.faults: dict[str, deque[Break | Exception | asyncio.Event]] = {}
        self.changed = asyncio.Condition()
        self.written: list[Arrival] = []
        self.taken = 0
        # The calls that are held up.
        self.hanging = 0
        self._numbers = itertools.count(1)
        self._nonces: dict[str, str] = {}
        self._any_chat: deque[Break | Exception | asyncio.Event] = deque()

    # -- what people do ----------------------------------------------------------------------------

    async def write(self, text: str) -> None:
        """Add a message of the chat's person."""
        number = next(self._numbers)
        arrival = Arrival(f"fake:{number}", self.chat_id, text, platform_id=f"p{number}")
        async with self.changed:
            self.written.append(arrival)
            self.changed.notify_all()

    async def sent(self) -> list[Shown]:
        """List what the bot wrote into the chat."""
        return [shown for shown in self.messages.values() if shown.chat_id == self.chat_id]

    async def break_next(self, how: Break) -> None:
        """Let the next send or edit fail."""
        self.fail(how)

    def fail(self, *how: Break | Exception | asyncio.Event, chat_id: str = "") -> None:
        """Let the next calls (of one chat) fail like this; an event holds its call up until it is set."""
        (self.faults.setdefault(chat_id, deque()) if chat_id else self._any_chat).extend(how)

    def texts(self, chat_id: str = "") -> list[str]:
        """List the texts that stand in a chat."""
        return [shown.text for shown in self.messages.values() if shown.chat_id == (chat_id or self.chat_id)]

    async def until(self, holds: Callable[[FakePlatform], bool]) -> None:
        """Return once ``holds`` is true of it."""
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(lambda: holds(self))

    # -- what the adapter calls --------------------------------------------------------------------

    async def take(self, chunk: Chunk) -> str:
        """Accept a chunk as a new message, unless its nonce is known."""
        async with self._meeting(chunk.chat_id):
            self.chunks.append(chunk)
            known = self._nonces.get(chunk.nonce) if self.remembers else None
            if known is not None:
                return known
            number = f"m{next(self._numbers)}"
            content = chunk.content
            text = content.name if isinstance(content, Path) else content.plain
            if isinstance(content, Path):
                self.files[number] = content.read_bytes()
            self.messages[number] = Shown(number, chunk.chat_id, text)
            self._nonces[chunk.nonce] = number
            return number

    async def change(self, chat_id: str, platform_id: str, text: str) -> None:
        """Replace the text of a message."""
        async with self._meeting(chat_id):
            if platform_id not in self.messages:
                raise MessageGone("there is no such message")
            self.edits.append((platform_id, text))
            self.messages[platform_id] = Shown(platform_id, chat_id, text)

    async def type(self, chat_id: str) -> None:
        """Show that the bot writes."""
        async with self.changed:
            self.typings.append(chat_id)
            self.changed.notify_all()

    @asynccontextmanager
    async def _meeting(self, chat_id: str) -> AsyncIterator[None]:
        """Fail as asked; what is done inside is done all the same where only the answer is lost."""
        faults = self.faults.get(chat_id) or self._any_chat
        fault = faults.popleft() if faults else None
        if isinstance(fault, asyncio.Event):
            async with self.changed:
                self.hanging += 1
                self.changed.notify_all()
            await fault.wait()
            self.hanging -= 1
            fault = None
        if isinstance(fault, Exception):
            raise fault
        if fault == "gone":
            self.messages.popitem()
        elif fault is not None and fault != "unknown":
            raise _refusal(fault)
        yield
        async with self.changed:
            self.changed.notify_all()
        if fault == "unknown":
            raise _refusal(fault)


def _refusal(how: Break) -> Exception:
    match how:
        case "down":
            return ChannelDown("no connection")
        case "later":
            return SendLater("too many calls", after_s=0.01)
        case "unknown":
            return SendUnknown("the connection broke")
        case "moved":
            return ChatMoved("the chat moved", to=f"{ADA}2")
        case _:
            return SendNever("the chat is closed to bots")


class FakeChannel:
    """The adapter of a ``FakePlatform``: chunks of at most ``max_chars`` characters, two buttons at most."""

    buttons_max = 2

    def __init__(
        self, platform: FakePlatform, *, name: str = "fake", max_chars: int = 40, safe_to_repeat: bool = False
    ) -> None:
        self.name = name
        self.platform = platform
        self.safe_to_repeat = safe_to_repeat
        self._max_chars = max_chars
        self.closed = False

    async def run(self, emit: Emit) -> None:
        """Hand over what was written, one message after the other."""
        platform = self.platform
        while True:
            async with platform.changed:
                await platform.changed.wait_for(lambda: platform.taken < len(platform.written))
            await emit(platform.written[platform.taken])
            platform.taken += 1

    def split(self, text: str) -> list[Rendered]:
        """Cut at the size, whatever stands there."""
        size = self._max_chars
        return [Rendered(text[at : at + size]) for at in range(0, len(text), size)]

    async def send(self, chunk: Chunk) -> str:
        """Deliver one chunk."""
        return await self.platform.take(chunk)

    async def edit(self, chat_id: str, platform_id: str, content: Rendered) -> None:
        """Replace the text of a message."""
        await self.platform.change(chat_id, platform_id, content.plain)

    async def typing(self, chat_id: str) -> None:
        """Show that the bot writes."""
        await self.platform.type(chat_id)

    async def aclose(self) -> None:
        """Give back nothing."""
        self.closed = True
