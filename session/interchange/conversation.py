"""A conversation outside of any format, what a codec promises, and what a format does not hold; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from session.errors import SessionError
from session.transcript.line import read_time

Line = dict[str, Any]
# Contents by path, which is relative to what was named and has forward slashes.
Files = Mapping[str, bytes]


class BadFormat(SessionError):
    """The files hold nothing of the format that was named."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session as a transcript would hold it.

    Args:
        lines: message lines, oldest first, our own records among them.
        key: the conversation it belongs to; empty where the source names none.
        session_id: what the source calls it; not necessarily a ULID.
        origin: the file it came from, relative, with forward slashes.
        created_at: when it began, aware.
        inner: line 1's ``metadata`` but for the ``session_id``.
        extra: further fields of line 1.
        last_consolidated: how many lines memory holds.
        media: files that its messages name, by their path in a workspace.
        lost: what the source held and this does not, in words.
    """

    lines: tuple[Line, ...] = ()
    key: str = ""
    session_id: str = ""
    origin: str = ""
    created_at: datetime | None = None
    inner: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    last_consolidated: int = 0
    media: Files = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether its source names a time at which it ended."""
        return read_time(self.inner.get("ended_at")) is not None

    @property
    def last_at(self) -> datetime | None:
        """When its newest message was written; where none says, when it began."""
        spoken = (line for line in reversed(self.lines) if line.get("role") != "system")
        times = (read_time(line.get("timestamp")) for line in spoken)
        return next((at for at in times if at is not None), self.created_at)


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation in a format: its files by path, and in words what they do not hold."""

    files: Files
    lost: tuple[str, ...] = ()


class Source(Protocol):
    """One format that is read."""

    def decode(self, files: Files) -> list[Conversation]:
        """Read every session in the files. Raises BadFormat where nothing is one, or most of it is not."""
        ...


class Codec(Source, Protocol):
    """One format, both ways."""

    def encode(self, conversation: Conversation) -> Written:
        """Write one session."""
        ...


class Losses:
    """Counts what a format does not hold."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """Count something that is left behind; ``what`` is a plural."""
        if count:
            self._counts[what] += count

    def fields(self, line: Mapping[str, Any], kept: Iterable[str]) -> None:
        """Count the fields of a line beside those that are kept."""
        for name in line.keys() - set(kept):
            self._counts[f"lines' field {name}"] += 1

    def unread(self, what: str, kind: object) -> None:
        """Count something that no reader here knows, by the name of its kind; ``what`` is a plural."""
        named = isinstance(kind, str) and kind.isprintable() and 0 < len(kind) <= 40
        self._counts[f"{what} of type {kind}" if named else f"{what} without a type"] += 1

    def others(self, whose: str, record: Mapping[str, Any], kept: Iterable[str]) -> None:
        """Count the fields of a record that are not read; ``whose`` is a possessive such as ``turns'``."""
        for name in record.keys() - set(kept):
            if record[name] is not None:
                self._counts[f"{whose} field {name}"] += 1

    def of_session(self, conversation: Conversation, kept: Iterable[str]) -> None:
        """Count what is known of the session beside what is kept."""
        for name in conversation.inner.keys() - set(kept):
            self._counts[f"the session's {name}"] += 1
        if conversation.last_consolidated:
            self._counts["the count of messages that memory holds"] += 1

    def words(self) -> tuple[str, ...]:
        """List them, by name."""
        return tuple(
            what if count == 1 else f"{what} ({count})" for what, count in sorted(self._counts.items())
        )
