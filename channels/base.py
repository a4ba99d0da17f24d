"""What an adapter promises and what it is given: one chat platform, received from and sent to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import durable
from channels.message import Button, Sender
from channels.tables import Platform

# Where there is such a clock, it counts on while the machine sleeps.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Return seconds since some moment; setting the clock changes nothing."""
    return time.clock_gettime(_STEADY)


class PlatformTime:
    """What the newest answer told; its second is whole, so that it is never ahead of the platform."""

    def __init__(self) -> None:
        self._told: datetime | None = None
        self._heard_s = 0.0

    def note(self, date: str | None) -> None:
        """Take the ``Date`` header of an answer; what is none is left out."""
        try:
            told = parsedate_to_datetime(date or "")
        except (TypeError, ValueError):
            return
        self._told = told.astimezone(UTC) if told.tzinfo else told.replace(tzinfo=UTC)
        self._heard_s = steady_s()

    def now(self) -> datetime | None:
        """Return the platform's time now; None before the first answer that told it."""
        if self._told is None:
            return None
        return self._told + timedelta(seconds=steady_s() - self._heard_s)


FileKind = Literal["photo", "document", "voice", "audio", "video"]
# An adapter that says what is wrong may go on without a round trip for so many times as long.
PATIENCE = 10


@dataclass(frozen=True, slots=True)
class File:
    """A file that came with a message, not fetched yet.

    Args:
        name: as the platform shows it; it may be empty and is made safe later.
        size: bytes, as the platform says; None where it does not.
        fetch: begins the download; yields its bytes piece by piece. Raises ``ChannelError`` where the
            platform does not give it.
    """

    kind: FileKind
    name: str
    mime: str
    size: int | None
    fetch: Callable[[], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True)
class Quote:
    """The message that an arrival replies to, its files not fetched yet; else as ``message.Quoted``."""

    author: str = ""
    text: str = ""
    message_id: str | None = None
    partial: bool = False
    own: bool = False
    opens: bool = False
    files: Sequence[File] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message, edit or command as an adapter received it, before anyone decided whether to take it.

    Args:
        id: the inbound id, the same whenever the platform delivers it again.
        chat_id: the chat with its topic, as in the key: ``-100123:topic:5``.
        platform_id: the platform's id of the message; an edit has that of the message it changes.
        from_bot: the sender is a program.
        group: more than one person may read along.
        group_ids: the ids under which ``group_allow`` may name this group, the chat's own first.
        mentioned: the bot was named by its whole name, or the message replies to one of its own.
        quoted: what it replies to.
        forwarded_from: who wrote the text, where it is forwarded; empty: the sender.
        part_of: the same for all parts of one album or of one long text that the platform cut.
        long: its text is so long that it may be cut, and the next message go on with it.
        sent_at: when the platform says it was written; of an edit, when it was edited.
        files: what came along, not fetched yet.
        unreadable: why nothing of the message can be understood; its chat is told so. Empty: it can be.
        meta: what the adapter needs to send an answer; it comes back in ``Chunk.meta``.
    """

    id: str
    chat_id: str
    text: str
    kind: Literal["message", "edit", "command", "action"] = "message"
    platform_id: str | None = None
    sender: Sender = field(default_factory=Sender)
    from_bot: bool = False
    group: bool = False
    group_ids: tuple[str, ...] = ()
    mentioned: bool = False
    reply_to: str | None = None
    quoted: Quote | None = None
    forwarded_from: str = ""
    part_of: str | None = None
    long: bool = False
    sent_at: datetime | None = None
    files: Sequence[File] = ()
    unreadable: str = ""
    # The chat id that this chat had until now; text and files are empty then.
    moved_from: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


# It returns whether the chat will hear of the message.
Emit = Callable[[Arrival], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """One chunk of a text as the platform gets it; ``markup`` is the adapter's own (entities, a mode)."""

    plain: str
    markup: object = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One send: a rendered text, or a file.

    Args:
        content: the text, or the path of a file that exists.
        nonce: at most 25 characters, the same whenever this very chunk is sent again.
        reply_to: the platform's id of the message that it answers; only the first chunk has one.
        buttons: what may be pressed below it; a channel that does not ``Presses`` gets none. A pressed one is
            emitted as an ``action`` with its value as text, and an edit of the message takes them away.
        meta: the ``meta`` of the message that it answers.
        caption: what is to be shown beside a file, as plain text; it has at most 1,024 characters.
        first: nothing of its letter was sent before it; what can be answered only once is answered by it.
    """

    chat_id: str
    content: Rendered | Path
    nonce: str
    reply_to: str | None = None
    buttons: Sequence[Button] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    caption: str = ""
    first: bool = True


class Channel(Protocol):
    """One chat platform: run it to receive, call send to reply, cancel run to stop.

    What else a platform can do is a Protocol of one member each: ``Types``, ``Edits``, ``Registers``,
    ``Admins``, ``Presses``, ``Promises``.
    """

    @property
    def name(self) -> str:
        """Configuration table, routing key, and first part of every key: ``telegram``."""
        ...

    @property
    def safe_to_repeat(self) -> bool:
        """Whether the platform itself recognises a chunk that is sent again with the same nonce."""
        ...

    async def run(self, emit: Emit) -> None:
        """Receive until cancelled; once ``emit(arrival)`` returns, the message is durable or dismissed.

        It returns False where the message was dismissed without a word: nothing will come back for it.
        ``emit`` waits while the queue is away, keeps the order of the calls of one chat that are awaited
        one after the other, and fails only by being cancelled. What is not emitted must come again.

        Raises:
            ChannelDown: the platform cannot be reached any more; run is called again, on a new object.
            CredentialsRefused: the token is wrong; only a person can help.
        """
        ...

    def split(self, text: str) -> list[Rendered]:
        """Render Markdown for the platform in chunks of its size, in order; the same for the same text."""
        ...

    async def send(self, chunk: Chunk) -> str:
        """Deliver one chunk; return the platform's id of the message.

        Raises:
            ChannelDown: not sent; try again.
            SendLater: not sent; try again after some time.
            SendUnknown: it may have been sent.
            SendNever: refused for good; ``ChatMoved`` where the chat has another id now.
        """
        ...

    async def aclose(self) -> None:
        """Give back what ``send`` uses; ``run`` has ended by then."""
        ...


@runtime_checkable
class Types(Protocol):
    """The platform can show that an answer is being written."""

    async def typing(self, chat_id: str) -> None:
        """Show it for some seconds. Raises as ``Channel.send``: it shows whether the platform answers."""
        ...


@runtime_checkable
class Edits(Protocol):
    """The platform can change a message that was sent."""

    async def edit(self, chat_id: str, platform_id: str, content: Rendered) -> None:
        """Replace the text of a message; the same text again is no error. Raises as ``Channel.send``."""
        ...


@runtime_checkable
class Presses(Protocol):
    """The platform shows buttons below a message and tells who pressed one."""

    @property
    def buttons_max(self) -> int:
        """How many of them a message may have."""
        ...


@runtime_checkable
class Promises(Protocol):
    """The platform itself shows that some messages are being answered, in the place of their answers."""

    def promised(self, message_id: str) -> bool:
        """Say whether this message is one of them: its answer is shown there, and only when it is whole."""
        ...


@runtime_checkable
class Registers(Protocol):
    """The platform shows a menu of commands."""

    async def register(self, commands: Mapping[str, str]) -> None:
        """Replace the menu: name without slash → description. Called only where it changed."""
        ...


@runtime_checkable
class Admins(Protocol):
    """The platform knows who administers a group."""

    async def is_admin(self, chat_id: str, person_id: str) -> bool:
        """Say whether this person administers this group.

        Raises:
            ChannelError: the platform gave no answer to that, neither yes nor no; the person is told so.
        """
        ...


class Pulse:
    """Where an adapter says that it lives: ``readyz`` and ``status`` show it, a stall restarts the adapter.

    Args:
        clock: the wall clock, UTC.
        steady: seconds that setting the clock does not change.
    """

    def __init__(
        self,
        clock: Callable[[], datetime] = durable.now,
        *,
        steady: Callable[[], float] = steady_s,
    ) -> None:
        self._clock = clock
        self._steady = steady
        self.up = False
        self.since = clock()
        self.error = "not connected yet"
        self.last_round_trip: datetime | None = None
        self.within_s = 0.0
        # When a round trip ended last, and when anything was said; both at first when the run began.
        self._trip_s = self._word_s = steady()

    def now(self) -> datetime:
        """Say what time it is, by the clock that ``since`` is taken from."""
        return self._clock()

    def begin(self) -> None:
        """Note that a new run begins: what the one before heard last says nothing about it."""
        self._trip_s = self._word_s = self._steady()

    def beat(self, *, within_s: float) -> None:
        """Note a completed round trip; the next one is to come within ``within_s`` seconds."""
        self.last_round_trip = self._clock()
        self._trip_s = self._word_s = self._steady()
        self.within_s = within_s
        if not self.up:
            self.up, self.since, self.error = True, self.last_round_trip, ""

    def fail(self, error: str) -> None:
        """Note that the platform does not answer, in words without secrets; whoever says so tries again."""
        self._word_s = self._steady()
        if self.up:
            self.up, self.since = False, self._clock()
        self.error = error

    def stalled(self) -> bool:
        """Say whether the next round trip is overdue, and nobody says why, or has said so for very long."""
        if not self.within_s:
            return False
        now = self._steady()
        return now - self._word_s > self.within_s or now - self._trip_s > PATIENCE * self.within_s


@dataclass(frozen=True, slots=True)
class Site:
    """What an adapter is given besides its configuration table.

    Args:
        state: the folder of our own files; its own files there begin with its name.
        pulse: where it says that it lives.
        commands: the names of the commands of a chat, with their descriptions.
        began: when this process began to run it, by the clock of this machine.
        mark_s: the same moment by ``steady_s``.
    """

    state: Path
    pulse: Pulse
    commands: Mapping[str, str]
    began: datetime = field(default_factory=durable.now)
    mark_s: float = field(default_factory=steady_s)

    def first_start(self, platform_now: datetime | None) -> datetime:
        """Return when this process began by the platform's time, whose messages are dated by it.

        A first start counts from then, not from the moment at which the platform answers. Where the platform
        does not tell its time, the clock of this machine is believed.
        """
        if platform_now is None:
            return self.began
        return platform_now - timedelta(seconds=steady_s() - self.mark_s)


@dataclass(frozen=True, slots=True)
class Kind:
    """How an adapter is found: its table in ``[channels.<name>]``, and what builds it.

    Args:
        name: of the form ``[a-z][a-z0-9_]{0,31}``.
        table: a subclass of ``channels.tables.Platform``; its file imports no SDK.
        build: ``module:function``, imported only when the channel is enabled; called with the table and the
            site, it returns a ``Channel``.
    """

    name: str
    table: type[Platform]
    build: str
