"""The Protocols of the queue: what a put, a letter and a mailbox promise, whoever keeps them.

Two implementations, one contract test class (``tests/contracts/mailbox.py``): ``embedded`` and ``rabbitmq``.
A *box* is ``"inbound"`` or ``"outbound.<channel>"``; a slot is ``crc32(utf8(key)) % 256``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal, Protocol

from durable import Commit

INBOUND = "inbound"
Topic = Literal["control", "events"]
Mark = Callable[[], Awaitable[object]]


def outbound(channel: str) -> str:
    """Name the box from which ``channel`` is served."""
    return f"outbound.{channel}"


# What a letter may carry besides: the context of a trace, as the W3C names it.
CARRIED: Final = ("traceparent", "tracestate")
# The W3C asks for so many of a tracestate; a traceparent has 55.
CARRIED_MAX_CHARS: Final = 512
_CARRIABLE: Final = re.compile(rf"[\t\x20-\x7e]{{1,{CARRIED_MAX_CHARS}}}")
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# The headers of the letter that is being worked on: what is put meanwhile goes on with them.
carried: ContextVar[Mapping[str, str]] = ContextVar("carried", default=NO_HEADERS)


def carried_in(headers: Mapping[str, object]) -> dict[str, str]:
    """Pick from a message's headers what its letter carries; what is no context of a trace is left out."""
    # Whoever goes on with them adds his own: what fills a frame here would need more than one there, over
    # which the broker hangs up, each time.
    named = ((name, headers.get(name)) for name in CARRIED)
    return {name: value for name, value in named if isinstance(value, str) and _CARRIABLE.fullmatch(value)}


@dataclass(frozen=True, slots=True)
class Post:
    """What is put into a box: ``body`` under ``id``, in line behind the earlier posts of ``key``.

    ``headers`` go with it to whoever takes it; without any it has those of the letter that is worked on.
    """

    box: str
    key: str
    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=carried.get)


class Letter:
    """One message taken from a box, until it is settled or parked.

    ``id``: of the envelope; empty where a foreign program sent none. ``key`` is None where it named none.
    ``headers``: those it was put with, where its queue keeps them. ``suspect``: it may have been delivered
    before (redelivered; embedded: in the table at start).
    """

    __slots__ = ("body", "box", "headers", "id", "key", "suspect")

    def __init__(
        self,
        box: str,
        id: str,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        suspect: bool = False,
    ) -> None:
        self.box, self.id, self.body = box, id, body
        self.key, self.headers, self.suspect = key, headers, suspect

    @property
    def lost(self) -> bool:
        """Whether it can no longer be settled here, since its delivery ended (it comes again)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ParkedAs:
    """How a letter is listed when it is parked: its key if known, why, and after how many attempts."""

    key: str | None
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Parked:
    """A letter set aside. ``id`` is the message id, else a ULID given when parked; ``key`` may be None."""

    id: str
    box: str
    key: str | None
    reason: str
    # The queue that it was parked from: header ``from``.
    origin: str
    attempts: int
    # UTC.
    parked_at: datetime
    body: bytes


@dataclass(frozen=True, slots=True)
class Depth:
    """How much waits in a box; ``oldest_at`` (UTC) where the mailbox knows it.

    ``takers``: how many take from it, in whichever process, where the mailbox knows that. ``age_s``: for how
    many seconds it is known.
    """

    count: int
    oldest_at: datetime | None = None
    takers: int = 0
    age_s: float = 0.0

    def as_dict(self) -> dict[str, float | str | None]:
        """Return it as ``status`` shows it."""
        at = self.oldest_at.isoformat() if self.oldest_at else None
        return {"count": self.count, "oldest_at": at, "age_s": round(self.age_s, 1)}


@dataclass(frozen=True, slots=True)
class InMemory:
    """The letters that a process holds, their bytes, and how many bytes that may be."""

    letters: int
    bytes: int
    max_bytes: int

    def as_dict(self) -> dict[str, int]:
        """Return it as ``status`` shows it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the mailbox can be used now, since when (UTC), and the last error in words without secrets.

    ``hint`` is the cure; empty while nothing has failed yet.
    """

    up: bool
    since: datetime
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A letter that was put at ``put_at`` (UTC), and waits or is being worked on."""

    box: str
    key: str
    id: str
    put_at: datetime


class Behind(Protocol):
    """Something that is being committed."""

    @property
    def commit(self) -> Commit:
        """Its job in the state database."""
        ...

    async def durable(self) -> None:
        """Return when it is durable; raises what kept it from that."""
        ...


class Mailbox(Protocol):
    """A durable queue with boxes, parked letters, and a transient fan-out beside them.

    Used as: start ``serve()`` as a task, ``await ready()``, then everything else.
    """

    async def serve(self) -> None:
        """Keep the connection (or the writer) up until cancelled.

        Raises:
            TopologyMismatch, StateInUse, NewerState: it never can; the daemon ends.
        """
        ...

    async def ready(self) -> None:
        """Return once letters can be put and taken."""
        ...

    def health(self) -> Health:
        """Say whether it is up now."""
        ...

    async def put(self, post: Post) -> None:
        """Return when ``post`` is durable.

        Posts of one key put one after the other are taken in that order. The same id in the same box
        and key is stored at most once while it waits (embedded), or recognised by the taker (RabbitMQ).

        Raises:
            MailboxDown: not confirmed; put it again under the same id.
        """
        ...

    def take(self, box: str) -> AbstractAsyncContextManager[AsyncIterator[Letter]]:
        """Open the box: letters come in order per key until the context is left.

        After a lost connection the unsettled letters come again, as new objects, in order; the old
        objects are ``lost``. Leaving the context gives back, in order, what was not settled.
        Two takers of one box at once: each partition (embedded: the box) goes to one of them.
        """
        ...

    async def settle(
        self, letter: Letter, puts: Sequence[Post] = (), *, behind: Behind | None = None
    ) -> None:
        """Make ``puts`` durable, then remove ``letter`` (one transaction when embedded).

        ``behind``: what must be durable before, and is with it when embedded.

        Raises:
            MailboxDown: the puts are not confirmed, and the letter is not removed.
            LetterLost: the puts are durable, the letter comes again.
        """
        ...

    async def park(self, letter: Letter, listed: ParkedAs, *, mark: Mark | None = None) -> None:
        """Move ``letter`` with its body and id to the parked ones (durable there, then gone here).

        ``mark`` is awaited in between: when the parked copy is durable and before the letter is gone.

        Raises:
            MailboxDown: not confirmed; the letter is where it was.
            LetterLost: it is parked, and comes again all the same.
        """
        ...

    async def parked(self) -> list[Parked]:
        """List the parked letters, oldest first."""
        ...

    async def replay(self, id: str, *, key: str | None = None) -> Parked | None:
        """Put a parked letter back at the end of its box; None where none has that id (and key).

        Raises:
            LookupError: several have it; name the key.
        """
        ...

    async def drop(self, id: str, *, key: str | None = None) -> Parked | None:
        """Remove a parked letter for good; as ``replay``."""
        ...

    async def tell(self, topic: Topic, slot: int, body: bytes) -> None:
        """Send to whoever listens now; lost where nobody does. Never raises for a mailbox that is down."""
        ...

    def listen(
        self, topic: Topic, slots: Collection[int] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Receive what is told on ``topic`` (events: of these slots; None: of all) while it is open."""
        ...

    async def depths(self, channels: Collection[str] = (), *, recent: bool = False) -> Mapping[str, Depth]:
        """Count what waits or is being worked on, by box; ``parked`` among them.

        A broker does not list its queues: ``channels`` names those whose outbound boxes are counted, too,
        besides the ones that this process has used. Where ``recent`` counts will do, the broker is not asked
        each time.
        """
        ...

    async def waiting(self, message_id: str) -> Sequence[Waiting] | None:
        """List the letters with this id, or put for the message of this id, that are not settled.

        None: nobody can look into the queues, as of a broker.
        """
        ...

    def in_memory(self) -> InMemory:
        """Say what of the letters this process holds, and how much it may."""
        ...
