"""What goes on around a conversation: what happened, what is still open, how the channels stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from session.context.scopes import Scope


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a scope: when (aware), and what in one line."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Something that is still to be done, and when it comes next (aware), where that is known."""

    text: str
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChannelStanding:
    """A connected channel: whether it is up, and its last good round trip (aware; None: there was none)."""

    name: str
    up: bool
    last_round_trip: datetime | None


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """What goes on around a conversation: what happened, what is still open, how the channels stand."""

    events: Sequence[Event] = ()
    open_work: Sequence[OpenWork] = ()
    channels: Sequence[ChannelStanding] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Around which conversation to look: ``others`` are the other direct chats of the same person."""

    key: str
    scope: Scope
    others: tuple[str, ...] = ()


# Blocks, for threads; what cannot be read is left out.
LookAround = Callable[[Surroundings], WorkingMemory]
