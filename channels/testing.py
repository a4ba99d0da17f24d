"""A platform in memory with its adapter, and the contract that every adapter must keep."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, Protocol

import pytest

from channels.base import Arrival, Channel, Chunk, Edits, Emit, Rendered, Types
from channels.errors import (
    ChannelDown,
    ChannelError,
    ChatMoved,
    MessageGone,
    SendLater,
    SendNever,
    SendUnknown,
)
from channels.message import Button

Break = Literal["down", "later", "never", "unknown", "gone", "moved"]
DEADLINE_S = 30.0
LONG_TEXTS = {
    "words": " ".join(f"word{number}" for number in range(1_500)),
    "one word": "x" * 9_000,
    "wide": "😀é漢" * 2_500,
    "paragraphs": "\n\n".join(f"Paragraph {number} has some words." for number in range(300)),
}

NEEDS: dict[str, frozenset[str]] = {
    "test_a_piece_that_cannot_reach_the_platform_is_not_sent": frozenset({"down"}),
    "test_a_piece_over_the_rate_is_not_sent": frozenset({"later"}),
    "test_a_piece_refused_for_good_is_not_sent": frozenset({"never"}),
    "test_an_unknown_outcome_is_told": frozenset({"unknown"}),
    "test_a_moved_chat_says_where_to": frozenset({"moved"}),
    "test_an_edit_replaces_the_text": frozenset({"edit"}),
    "test_an_edit_of_a_deleted_message_says_so": frozenset({"edit", "gone"}),
    "test_typing_sends_nothing": frozenset({"typing"}),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A message of the bot as people see it now; of a file ``text`` is its name."""

    id: str
    chat_id: str
    text: str


class FarSide(Protocol):
    """The far side of an adapter, as its tests drive it."""

    @property
    def chat_id(self) -> str:
        """A direct chat with a person who may talk to the bot."""
        ...

    async def write(self, text: str) -> None:
        """Let that person write a message."""
        ...

    async def sent(self) -> list[Shown]:
        """List the messages of the bot that stand in that chat, oldest first."""
        ...

    async def break_next(self, how: Break) -> None:
        """Let the next send or edit fail.

        ``down``: the platform cannot be reached. ``later``: too many calls. ``never``: refused for good.
        ``unknown``: it is taken, and the answer is lost on the way. ``gone``: the message that is to be
        edited was deleted. ``moved``: the chat has another id now.
        """
        ...


@dataclass(slots=True)
class Received:
    """What an adapter emitted, in order; ``hold`` keeps each emit from returning until it is set."""

    arrivals: list[Arrival]
    changed: asyncio.Condition
    hold: asyncio.Event

    async def emit(self, arrival: Arrival) -> bool:
        """Take an arrival; it counts as durable when this returns."""
        async with self.changed:
            self.arrivals.append(arrival)
            self.changed.notify_all()
        await self.hold.wait()
        return True

    async def until(self, text: str) -> Arrival:
        """Return the first arrival with this text, once it came."""
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(lambda: any(each.text == text for each in self.arrivals))
        return next(each for each in self.arrivals if each.text == text)


@asynccontextmanager
async def receiving(channel: Channel, *, hold: bool = False) -> AsyncIterator[Received]:
    """Run an adapter while the context is open; with ``hold`` no emit returns."""
    received = Received([], asyncio.Condition(), asyncio.Event())
    if not hold:
        received.hold.set()

    async def run() -> NoReturn:
        await channel.run(received.emit)
        raise AssertionError("run returned")

    running = asyncio.create_task(run(), name="run")
    try:
        yield received
    finally:
        running.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([running])
    if not running.cancelled():
        running.result()


class ChannelContract:
    """The promises of ``Channel``. A subclass says how an adapter is opened, and drives its platform.

    ``lacks`` names what the platform does not have, so that nothing of it can be asked: a fault that it never
    shows, ``edit`` where messages cannot be changed, ``typing`` where that is not shown.
    """

    lacks: frozenset[Break | Literal["edit", "typing"]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Leave out the tests of what is lacking."""
        super().__init_subclass__()
        for name, needed in NEEDS.items():
            if needed & cls.lacks:
                setattr(cls, name, None)

    def open_channel(self) -> AbstractAsyncContextManager[tuple[Channel, FarSide]]:
        """Open an adapter on a platform of its own, started for the first time. Leaving closes both."""
        raise NotImplementedError

    def open_again(self, platform: FarSide) -> AbstractAsyncContextManager[Channel]:
        """Open another adapter on the same platform and state, as after a failure. Leaving closes it."""
        raise NotImplementedError

    # -- sending -----------------------------------------------------------------------------------

    async def test_name_is_a_routing_key(self) -> None:
        """The name may stand in a key, a queue's name and a table of the configuration."""
        async with self.open_channel() as (channel, _):
            assert re.fullmatch(r"[a-z][a-z0-9_]{0,31}", channel.name)

    async def test_a_sent_piece_stands_in_the_chat_under_its_id(self) -> None:
        """Send returns the platform's id of the message; two messages have two."""
        async with self.open_channel() as (channel, platform):
            one = await channel.send(chunk(channel, platform, "first words", number=1))
            two = await channel.send(chunk(channel, platform, "second words", number=2))

            shown = await platform.sent()
        assert [(each.id, each.text) for each in shown] == [(one, "first words"), (two, "second words")]

    async def test_a_piece_with_buttons_is_taken(self) -> None:
        """Its text stands in the chat, whether the platform has buttons or not."""
        async with self.open_channel() as (channel, platform):
            button = Button(label="Yes", value="/approve aaaaaaaaaaaaaaaa")
            asked = replace(chunk(channel, platform, "may it?", number=1), buttons=[button])
            id_ = await channel.send(asked)

            assert await platform.sent() == [Shown(id_, platform.chat_id, "may it?")]

    async def test_a_file_is_sent(self, tmp_path: Path) -> None:
        """A chunk whose content is a path is shown as a file of that name."""
        path = tmp_path / "report.txt"
        path.write_text("figures")
        async with self.open_channel() as (channel, platform):
            await channel.send(Chunk(platform.chat_id, path, nonce="file"))

            assert [each.text for each in await platform.sent()] == ["report.txt"]

    @pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
    async def test_every_piece_of_a_long_text_is_taken(self, text: str) -> None:
        """Chunks keep the platform's limits and, in order, all words of the text; again they are the same."""
        async with self.open_channel() as (channel, platform):
            chunks = channel.split(text)
            for number, rendered in enumerate(chunks):
                await channel.send(Chunk(platform.chat_id, rendered, nonce=f"n{number}"))

            shown = await platform.sent()
            assert channel.split(text) == chunks
        assert len(shown) == len(chunks) > 1
        assert words("".join(each.text for each in shown)) == words(text)

    async def test_a_short_text_is_one_piece(self) -> None:
        """What fits is not split, and nothing is sent for nothing."""
        async with self.open_channel() as (channel, _):
            assert [each.plain.strip() for each in channel.split("hello")] == ["hello"]
            assert [each for each in channel.split("") if each.plain] == []

    async def test_a_piece_that_cannot_reach_the_platform_is_not_sent(self) -> None:
        """A platform that is away is ``ChannelDown``: nothing is shown, and the next call is not harmed."""
        await self._refuses("down", ChannelDown)

    async def test_a_piece_over_the_rate_is_not_sent(self) -> None:
        """Too many calls is ``SendLater``, with the seconds to wait."""
        error = await self._refuses("later", SendLater)
        assert isinstance(error, SendLater)
        assert error.after_s > 0

    async def test_a_piece_refused_for_good_is_not_sent(self) -> None:
        """A call that will never succeed is ``SendNever``."""
        error = await self._refuses("never", SendNever)
        assert not isinstance(error, ChatMoved | MessageGone)

    async def _refuses(self, how: Break, promised: type[ChannelError]) -> ChannelError:
        async with self.open_channel() as (channel, platform):
            await platform.break_next(how)
            with pytest.raises(promised) as caught:
                await channel.send(chunk(channel, platform, "hello", number=1))

            assert await platform.sent() == []
            await channel.send(chunk(channel, platform, "hello", number=1))
            assert len(await platform.sent()) == 1
        return caught.value

    async def test_an_unknown_outcome_is_told(self) -> None:
        """An answer lost on the way is ``SendUnknown``; a safe repeat is shown once."""
        async with self.open_channel() as (channel, platform):
            await platform.break_next("unknown")
            with pytest.raises(SendUnknown):
                await channel.send(chunk(channel, platform, "hello", number=1))

            repeated = await channel.send(chunk(channel, platform, "hello", number=1))
            shown = await platform.sent()
        assert shown[-1].id == repeated
        assert len(shown) == (1 if channel.safe_to_repeat else 2)

    async def test_a_moved_chat_says_where_to(self) -> None:
        """A chat with a new id is ``ChatMoved``, with that id."""
        async with self.open_channel() as (channel, platform):
            await platform.break_next("moved")
            with pytest.raises(ChatMoved) as caught:
                await channel.send(chunk(channel, platform, "hello", number=1))
        assert caught.value.to not in ("", platform.chat_id)

    async def test_an_edit_replaces_the_text(self) -> None:
        """The message keeps its id and shows the new text; the same text again is no error."""
        async with self.open_channel() as (channel, platform):
            assert isinstance(channel, Edits)
            id_ = await channel.send(chunk(channel, platform, "hel", number=1))
            for text in ("hello", "hello"):
                await channel.edit(platform.chat_id, id_, channel.split(text)[0])

            assert await platform.sent() == [Shown(id_, platform.chat_id, "hello")]

    async def test_an_edit_of_a_deleted_message_says_so(self) -> None:
        """What is not there any more cannot be edited: ``MessageGone``."""
        async with self.open_channel() as (channel, platform):
            assert isinstance(channel, Edits)
            id_ = await channel.send(chunk(channel, platform, "hel", number=1))
            await platform.break_next("gone")
            with pytest.raises(MessageGone):
                await channel.edit(platform.chat_id, id_, channel.split("hello")[0])

    async def test_typing_sends_nothing(self) -> None:
        """Typing is shown without a message."""
        async with self.open_channel() as (channel, platform):
            assert isinstance(channel, Types)
            await channel.typing(platform.chat_id)

            assert await platform.sent() == []

    # -- receiving ---------------------------------------------------------------------------------

    async def test_what_is_written_arrives_in_order(self) -> None:
        """Each message arrives once, with its chat and ids, in the order of writing."""
        texts = [f"message {number}" for number in range(5)]
        async with self.open_channel() as (channel, platform), receiving(channel) as received:
            for text in texts:
                await platform.write(text)
            await received.until(texts[-1])

            came = received.arrivals
        assert [each.text for each in came] == texts
        assert {each.chat_id for each in came} == {platform.chat_id}
        assert len({each.id for each in came}) == len({each.platform_id for each in came}) == 5
        assert all(each.platform_id for each in came)

    async def test_an_arrival_can_be_answered(self) -> None:
        """A chunk with the arrival's chat, id and ``meta`` reaches the chat."""
        async with self.open_channel() as (channel, platform), receiving(channel) as received:
            await platform.write("hello?")
            asked = await received.until("hello?")
            await channel.send(
                Chunk(
                    asked.chat_id,
                    channel.split("yes")[0],
                    nonce="answer",
                    reply_to=asked.platform_id,
                    meta=asked.meta,
                )
            )

            assert [each.text for each in await platform.sent()] == ["yes"]

    async def test_what_was_not_taken_comes_again(self) -> None:
        """A message whose emit was cancelled comes again under the same id, then what came meanwhile."""
        async with self.open_channel() as (channel, platform):
            async with receiving(channel, hold=True) as received:
                await platform.write("first")
                first = await received.until("first")
            await platform.write("second")

            async with self.open_again(platform) as again, receiving(again) as received:
                await received.until("second")
                assert [each.text for each in received.arrivals] == ["first", "second"]
                assert received.arrivals[0].id == first.id

    async def test_what_was_taken_is_the_same_message_if_it_comes_again(self) -> None:
        """After a restart new messages come; an old one may come again, under its old id only."""
        async with self.open_channel() as (channel, platform):
            async with receiving(channel) as received:
                await platform.write("first")
                first = await received.until("first")

            async with self.open_again(platform) as again, receiving(again) as received:
                await platform.write("second")
                await received.until("second")
                assert {each.id for each in received.arrivals if each.text == "first"} <= {first.id}

    async def test_run_ends_when_it_is_cancelled(self) -> None:
        """Cancelled with a message in hand, run ends at once, and sending still works."""
        async with self.open_channel() as (channel, platform):
            async with receiving(channel, hold=True) as received:
                await platform.write("hello")
                await received.until("hello")
            await channel.send(chunk(channel, platform, "still here", number=1))

            assert [each.text for each in await platform.sent()] == ["still here"]


def chunk(channel: Channel, platform: FarSide, text: str, *, number: int) -> Chunk:
    """Make a chunk of a short text."""
    return Chunk(platform.chat_id, channel.split(text)[0], nonce=f"contract-{number}")


def words(text: str) -> str:
    """Return what must arrive of a text: everything but white space."""
    return "".join(text.split())


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
