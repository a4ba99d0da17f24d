"""One Event object as clients see it, and which ones end the wait for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from session.journal import Told

TOLD = ("reply", "notice")
WAITING = frozenset({"busy", "idle", "model_away", "storage"})  # notices after which the answer still comes


@dataclass(frozen=True, slots=True)
class Event:
    """What somebody who looks on sees; ``seq`` counts the replies and notices of a key."""

    id: str
    key: str
    in_reply_to: str | None
    kind: str
    seq: int
    text: str

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
        return self.kind == "reply" or (self.kind == "notice" and self.reason not in WAITING)

    def to_bytes(self) -> bytes:
        """Encode as one line of JSON."""
        return orjson.dumps(
            {
                "v": 1,
                "id": self.id,
                "key": self.key,
                "in_reply_to": self.in_reply_to,
                "kind": self.kind,
                "seq": self.seq,
                "text": self.text,
            }
        )


def read(body: bytes | str) -> Event | None:
    """Read an event's body; None where it is not one."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return of(fields) if isinstance(fields, dict) else None


def of(fields: Mapping[str, Any]) -> Event | None:
    """Build an event from its fields; None where one is missing or wrong."""
    key, kind, seq = fields.get("key"), fields.get("kind"), fields.get("seq")
    if not isinstance(key, str) or not isinstance(kind, str) or type(seq) is not int:
        return None
    answered = fields.get("in_reply_to")
    text = fields.get("text")
    return Event(
        id=str(fields.get("id") or ""),
        key=key,
        in_reply_to=answered if isinstance(answered, str) else None,
        kind=kind,
        seq=seq,
        text=text if isinstance(text, str) else "",
    )


def of_told(key: str, told: Told) -> Event:
    """Build the event of a reply or notice that is on record."""
    suffix = "reply" if told.kind == "reply" else f"notice.{told.reason or 'ended'}"
    return Event(f"{told.id}#{suffix}", key, told.id, told.kind, told.seq, told.text)
