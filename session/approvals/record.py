"""One call that waits for a person's word: what is asked, bound to its hash, and what became of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal

State = Literal["waiting", "allowed", "denied", "expired", "cancelled", "started", "ended"]
STATES: Final = frozenset({"waiting", "allowed", "denied", "expired", "cancelled", "started", "ended"})
_ID: Final = re.compile(r"[a-z2-7]{16}")


@dataclass(frozen=True, slots=True)
class Call:
    """The exact call that a person is asked about.

    ``number`` counts the rounds of the turn: some models give the same ``call_id`` in each. ``arguments`` are
    the model's own text, ``folder`` is where the tool acts, ``chat`` the key of the chat that is asked.
    """

    key: str
    chat: str
    message_id: str
    number: int
    call_id: str
    tool: str
    arguments: str
    folder: str
    asked_by: str = ""

    def digest(self) -> str:
        """Return the SHA-256 over all that the word is about."""
        bound = [self.key, self.message_id, self.number, self.call_id, self.tool, self.arguments, self.folder]
        return hashlib.sha256(json.dumps(bound).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Approval:
    """A call, and what was decided about it.

    ``id`` is the beginning of ``digest``, so that it stands for this call alone. ``decided_by`` is for
    people, ``decided_via`` the id of the message or press that decided.
    """

    id: str
    digest: str
    call: Call
    asked_at: datetime
    expires_at: datetime
    state: State = "waiting"
    decided_by: str = ""
    decided_via: str = ""
    decided_at: datetime | None = None
    ended_at: datetime | None = None

    @classmethod
    def of(cls, call: Call, now: datetime, *, timeout_s: float) -> Approval:
        """Ask about a call from now on."""
        digest = call.digest()
        return cls(id_of(digest), digest, call, now, now + timedelta(seconds=timeout_s))

    @property
    def open(self) -> bool:
        """Whether it waits for a word."""
        return self.state == "waiting"

    @property
    def timeout_s(self) -> float:
        """How long a word was waited for."""
        return (self.expires_at - self.asked_at).total_seconds()

    def is_late(self, now: datetime) -> bool:
        """Say whether its time is over."""
        return now >= self.expires_at

    def as_state(self) -> dict[str, Any]:
        """Return what its file holds."""
        return {
            **asdict(self),
            **{name: at.isoformat() for name in _TIMES if (at := getattr(self, name)) is not None},
        }

    def as_dict(self) -> dict[str, Any]:
        """Return what clients see."""
        call = self.call
        return {
            "id": self.id,
            "key": call.key,
            "message_id": call.message_id,
            "tool": call.tool,
            "arguments": call.arguments,
            "folder": call.folder,
            "asked_by": call.asked_by,
            "asked_at": self.asked_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "state": self.state,
            "decided_by": self.decided_by,
            "decided_at": self.decided_at.isoformat() if self.decided_at is not None else None,
        }


_TIMES: Final = ("asked_at", "expires_at", "decided_at", "ended_at")


def id_of(digest: str) -> str:
    """Return the short name of a call: short enough for the button of any platform."""
    return base64.b32encode(bytes.fromhex(digest)[:10]).decode().lower()


def is_id(text: str) -> bool:
    """Say whether a text may name an approval."""
    return _ID.fullmatch(text) is not None


def read(content: Mapping[str, Any]) -> Approval | None:
    """Read what a file holds; None where that is damaged, or its hash is not that of its call."""
    try:
        call = Call(**content["call"])
        times = {name: datetime.fromisoformat(content[name]) for name in _TIMES if content.get(name)}
        kept = {each.name: content[each.name] for each in fields(Approval) if each.name in content}
        found = Approval(**{**kept, "call": call, **times})
        sound = found.digest == call.digest() and found.id == id_of(found.digest) and found.state in STATES
        zoned = all(at.tzinfo is not None for at in times.values()) and len(times) >= 2
    except (KeyError, TypeError, ValueError):
        return None
    return found if sound and zoned else None
