"""What one batch leaves to be judged: messages, harms, calls of the model, replies; values, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

# A message is named by its chat and number; the name stands in its text, and so in whatever is made of it.
CHATS = ("ann", "bob", "cy", "dee", "eve", "finn")
NAME = re.compile(rf"({'|'.join(CHATS)})-\d{{5}}")
# The stub's answers end with the number of the call that they answer.
CALL = re.compile(r"\(#(\d+)\)\s*\Z")
# What takes a running turn from a process: after each of these a request may be made once more.
INTERRUPTS = ("kill", "freeze", "full disk", "failing disk", "refusing disk")
# What takes letters from a process that goes on: another daemon may be handed them.
DISCONNECTS = ("cut", "broker killed", "deaf", "mute", "silence", "delay", "throttle")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a person; ``text`` holds its id, unless it is a command.

    ``kind``: plain | long (in several pieces) | read | write (a tool in between) | slow | poison (its model
    refuses it) | stop | new | resume | compact.
    """

    id: str
    chat: str
    kind: str
    text: str

    @property
    def command(self) -> bool:
        return self.kind in ("new", "stop", "resume", "compact")

    @property
    def rounds(self) -> int:
        return 0 if self.command else 1 + self.text.count("[[tool:")


@dataclass(slots=True)
class Harm:
    """What was done, from when to when by the kit's clock; ``life`` is the process, empty: all."""

    kind: str
    life: str
    began: float
    ended: float
    how: str = ""

    def within(self, start: float, end: float) -> bool:
        return self.began <= end and self.ended >= start


@dataclass(slots=True)
class Call:
    """One request that the stub got for a message.

    ``life`` made it. ``named`` are all messages that the request tells of. ``outcome``: running | answered |
    aborted (its client left) | refused.
    """

    n: int
    life: str
    message: str
    round: int
    at: float
    named: frozenset[str] = frozenset()
    outcome: str = "running"


@dataclass(frozen=True, slots=True)
class Reply:
    """One delivery to ``chat``; ``asked`` where the client asked for a reply again."""

    message: str
    chat: str
    kind: str
    text: str
    at: float
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One text that the stub platform showed: to whom, what it replies to (or nothing), and who said it."""

    chat: str
    answers: str
    life: str
    text: str
    at: float


@dataclass(slots=True)
class Update:
    """One message at the stub platform: to whom it was handed out, when it was confirmed (0: not yet)."""

    message: str
    written: float
    handed: list[tuple[str, float]] = field(default_factory=list)
    confirmed: float = 0.0


@dataclass(slots=True)
class Parked:
    id: str
    reason: str
    inbound: bool = True


@dataclass
class Records:
    """All of one batch; ``sent`` in the order in which each chat's messages were accepted.

    ``lines``: by chat its sessions, ended ones first, each the lines of one transcript behind the first.
    ``illegal``: what in the files is no legal line. ``notes``: what is wrong with what memory was told.
    ``asides``: the messages that each request of the background told of.
    ``ended``: what went on where it should not: processes that ended by themselves, letters that stay.
    ``published``: how often a message was put into the queue, where that was more than once.
    ``ordered``: the chats whose replies came in the order in which they were put.
    ``daemons``: how many ran side by side.
    ``updates``, ``sent_pieces``: what passed between the gateway and the stub platform.
    ``unsent``: answers that were set aside on their way to it, by the message that they answer.
    """

    sent: dict[str, list[Message]] = field(default_factory=dict)
    harms: list[Harm] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    asides: list[frozenset[str]] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    lines: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    illegal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    ordered: frozenset[str] = frozenset()
    daemons: int = 1
    updates: list[Update] = field(default_factory=list)
    sent_pieces: list[Sent] = field(default_factory=list)
    unsent: list[Parked] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [message for each in self.sent.values() for message in each]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A request or a delivery that was made again, and what explains it; empty where nothing does."""

    what: str
    message: str
    life: str
    cause: str
    at: float


@dataclass
class Guarantee:
    """One promise: how often it was put to the test, and each time that it broke."""

    name: str
    promise: str
    checked: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass
class Account:
    """What was found: the guarantees G1 to G7, and every repeat with its cause."""

    guarantees: list[Guarantee]
    repeats: list[Repeat] = field(default_factory=list)
    messages: int = 0
    calls: int = 0
    # What the messages would take if nothing were harmed or stopped.
    least_calls: int = 0
    stopped: int = 0
    pieces: int = 0

    @property
    def broken(self) -> list[str]:
        return [f"{each.name} {one}" for each in self.guarantees for one in each.broken]
