"""Events of turns: sent where somebody watches, replies of web and terminal always."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticSerializationError

import durable
from durable import BoundedDict, whole_text
from gateway.queue.mailbox import Mailbox
from session.transcript.journal import Told
from session.transcript.key import SLOTS, slot_of

TOLD: Final = ("reply", "notice")
# Notices after which the answer still comes.
FILES: Final = "files"
WAITING: Final = frozenset({"agent", "approval", "busy", FILES, "idle", "model_away", "storage"})
_INT64: Final = 2**63


class Event(BaseModel):
    """What somebody who looks on sees; ``seq`` counts the replies and notices of a key.

    Of a kind that a newer daemon tells, clients get what there is.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    v: Literal[1] = 1
    id: str = ""
    key: str
    in_reply_to: str | None = None
    kind: str
    seq: int = Field(ge=-_INT64, lt=_INT64)
    text: str = ""
    # The platform's id of the message that is answered, of a turn that starts.
    platform_id: str = Field(default="", exclude_if=lambda platform_id: not platform_id)

    @field_validator("id", "text", "platform_id", mode="before")
    @classmethod
    def _text_or_nothing(cls, value: object) -> object:
        return value if isinstance(value, str) else ""

    @field_validator("in_reply_to", mode="before")
    @classmethod
    def _id_or_none(cls, value: object) -> object:
        return value if isinstance(value, str) else None

    @property
    def told(self) -> bool:
        """Whether it is a reply or a notice, which may be asked for again."""
        return self.kind in TOLD

    @property
    def reason(self) -> str:
        """Why a notice was sent; empty of anything else."""
        return self.id.rpartition("#notice.")[2] if self.kind == "notice" and "#notice." in self.id else ""

    @property
    def ends(self) -> bool:
        """Whether nothing else comes for the message that it answers."""
        return self.kind == "reply" or (
            self.kind == "notice" and self.reason.partition(".")[0] not in WAITING
        )

    def to_bytes(self) -> bytes:
        """Encode as one line of JSON, with its text made one that UTF-8 has."""
        try:
            return self.__pydantic_serializer__.to_json(self)
        except PydanticSerializationError:
            return self.__pydantic_serializer__.to_json(
                self.model_copy(update={"text": whole_text(self.text)})
            )


def read_event(body: bytes | str) -> Event | None:
    """Read an event's body; None if it is not one. An optional field of a wrong type counts as left out."""
    try:
        return Event.model_validate(orjson.loads(body))
    except (orjson.JSONDecodeError, ValidationError):
        return None


def of_told(key: str, told: Told) -> Event:
    """Build the event of a reply or notice that is on record."""
    suffix = "reply" if told.kind == "reply" else f"notice.{told.reason or 'ended'}"
    return Event(
        id=f"{told.id}#{suffix}",
        key=key,
        in_reply_to=told.id,
        kind=told.kind,
        seq=told.seq,
        text=told.text,
    )


EventKind = Literal["queued", "started", "tool", "delta", "draft", "reply", "notice"]
Spawn = Callable[[Coroutine[Any, Any, None], str], None]
KEYS_MAX = 10_000
LOCAL_CHANNELS = frozenset({"web", "cli", "cron"})


class _Watch:
    """Until when somebody looks at slots, and at channels."""

    def __init__(self) -> None:
        self._slots = [0.0] * SLOTS
        self._channels: dict[str, float] = {}
        self._latest = 0.0

    def extend(self, slots: Collection[int] | None, channel: str | None, until: float) -> None:
        if channel is not None:
            self._channels[channel] = max(self._channels.get(channel, 0.0), until)
        else:
            for slot in range(SLOTS) if slots is None else slots:
                self._slots[slot] = max(self._slots[slot], until)
        self._latest = max(self._latest, until)

    def __call__(self, key: str) -> bool:
        now = durable.monotonic()
        if self._latest <= now:
            return False
        return self._slots[slot_of(key)] > now or self._channels.get(key.partition(":")[0], 0.0) > now


class Events:
    """Sends Event objects to ``chat.events`` for the keys that somebody watches."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        # Whether somebody wants to see more of a key than replies, and reads answers while they are written.
        self.watched, self.read = _Watch(), _Watch()
        # The seq of the last reply or notice of a key.
        self._seqs: BoundedDict[str, int] = BoundedDict(KEYS_MAX)
        # The turns that run, by key: a key has one at a time.
        self.onlookers: dict[str, Onlooker] = {}

    def watch(
        self,
        slots: Collection[int] | None,
        for_s: float,
        *,
        channel: str | None = None,
        reads: bool = True,
    ) -> None:
        """Note that somebody watches these slots (None: all), or a channel, for ``for_s`` seconds from now.

        ``reads``: the text of answers too, while it is written.
        """
        until = durable.monotonic() + for_s
        self.watched.extend(slots, channel, until)
        if reads:
            self.read.extend(slots, channel, until)

    def draft(self, key: str) -> None:
        """Send the text that the running turn of ``key`` has so far, where it runs here."""
        if (looking := self.onlookers.get(key)) is not None:
            looking.draft()

    async def tell(
        self,
        kind: EventKind,
        key: str,
        message_id: str | None,
        *,
        text: str = "",
        seq: int = 0,
        event_id: str = "",
        platform_id: str | None = None,
    ) -> None:
        """Send one event to whoever listens now.

        ``seq`` is the place of a reply or notice; other events carry that of the last one before them.
        ``event_id`` of a reply or notice is its Outbound's, from which clients learn a notice's reason.
        """
        if kind not in TOLD:
            seq = self._seqs.get(key, 0)
        elif seq:
            self._seqs[key] = max(seq, self._seqs.get(key, 0))
        event = Event.model_construct(
            id=event_id or f"{message_id or key}#{kind}",
            key=key,
            in_reply_to=message_id,
            kind=kind,
            seq=seq,
            text=text,
            platform_id=platform_id or "",
        )
        await self._mailbox.tell("events", slot_of(key), event.to_bytes())


class Onlooker:
    """Shows one turn, piece by piece, to everybody who watches its key, while it is open."""

    def __init__(self, events: Events, key: str, message_id: str, spawn: Spawn) -> None:
        self._written: list[str] = []
        self._events = events
        self._key = key
        self._message_id = message_id
        self._spawn = spawn

    def __enter__(self) -> Onlooker:
        self._events.onlookers[self._key] = self
        return self

    def __exit__(self, *_: object) -> None:
        # After a fence the next turn of the key may have begun already.
        if self._events.onlookers.get(self._key) is self:
            del self._events.onlookers[self._key]

    def reads(self) -> bool:
        """Say whether anybody reads along."""
        return self._events.read(self._key)

    def delta(self, text: str) -> None:
        """Show the next piece of the answer's text."""
        self._written.append(text)
        if self._events.watched(self._key):
            self._spawn(self._events.tell("delta", self._key, self._message_id, text=text), "event delta")

    def tool(self, name: str) -> None:
        """Show that a tool begins to run; what is written after it is another text."""
        self._written.clear()
        self._show("tool", name)

    def draft(self) -> None:
        """Show the whole text so far, in its place among the pieces."""
        self._show("draft", "".join(self._written))

    def _show(self, kind: EventKind, text: str) -> None:
        if self._events.watched(self._key):
            self._spawn(self._events.tell(kind, self._key, self._message_id, text=text), f"event {kind}")
