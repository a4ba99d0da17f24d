"""A conversation outside of any format, and what the codecs share in taking it apart; pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from session.errors import SessionError
from session.transcript.line import dump, make_line, read_time

Line = dict[str, Any]
# Readers want a time where no file names one.
NO_TIME = "1970-01-01T00:00:00.000000+00:00"
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
        """When its newest line was written; where none says, when it began."""
        times = (read_time(line.get("timestamp")) for line in reversed(self.lines))
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


# -- reading -----------------------------------------------------------------------------------------


def json_lines(data: bytes, losses: Losses) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSONL file; a torn end is passed over, other bad lines are counted."""
    *lines, tail = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for raw in lines:
        if raw.strip(b"\r\n\t \0"):
            found = _object(raw)
            if found is None:
                losses.add("lines that are no JSON object")
            else:
                yield found
    if tail.strip(b"\r\n\t \0"):
        found = _object(tail)
        if found is None:
            losses.add("an unfinished line at the end")
        else:
            yield found


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def json_object(data: bytes) -> dict[str, Any]:
    """Read a whole file as one JSON object; empty where it is none."""
    return _object(data.removeprefix(b"\xef\xbb\xbf")) or {}


def document(value: Mapping[str, Any]) -> bytes:
    """Write one JSON object for people to read, with a newline at its end."""
    return json.dumps(json.loads(dump(value)), ensure_ascii=True, indent=2).encode() + b"\n"


def stem_of(path: str) -> str:
    """Return a file's name without folder and ending."""
    return path.rsplit("/", 1)[-1].removesuffix(".jsonl").removesuffix(".json")


def iso(at: datetime | None) -> str:
    """Write a time as all formats read it: UTC, ``Z``; empty for none."""
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_text(value: object, default: str = NO_TIME) -> str:
    """Write any format's time as a line's ``timestamp``; ``default`` where it is none."""
    at = read_time(value)
    return at.astimezone(UTC).isoformat(timespec="microseconds") if at is not None else default


# -- lines -------------------------------------------------------------------------------------------


def is_record(line: Mapping[str, Any]) -> bool:
    """Say whether a line is one of our own: overlay, undo, note, compact."""
    return line.get("role") == "system" and isinstance(line.get("kind"), str)


def live(conversation: Conversation, losses: Losses) -> list[tuple[int, Line]]:
    """List the lines with their indexes, without withdrawn exchanges and their ``undo`` records."""
    gone: set[int] = set()
    for at, line in enumerate(conversation.lines):
        begin = line.get("from")
        if is_record(line) and line["kind"] == "undo" and type(begin) is int and begin >= 0:
            gone.add(at)
            taken = {n for n in range(begin, at) if not is_record(conversation.lines[n])} - gone
            losses.add("messages that were withdrawn", len(taken))
            gone |= taken
    return [(at, line) for at, line in enumerate(conversation.lines) if at not in gone]


def newest_overlay(lines: Iterable[tuple[int, Line]]) -> tuple[int, Line] | None:
    """Return the summary that is in force, with its index."""
    found = None
    for at, line in lines:
        if is_record(line) and line["kind"] == "overlay":
            found = (at, line)
    return found


def first_kept(overlay: tuple[int, Line]) -> int:
    """Return the index of the first line that a summary does not stand for."""
    at, line = overlay
    kept = line.get("first_kept")
    return kept if type(kept) is int and 0 <= kept <= at else at


def after_summary(
    lines: list[tuple[int, Line]], losses: Losses
) -> tuple[Line | None, list[tuple[int, Line]]]:
    """Take a conversation apart for a format in which a summary opens the file.

    Returns:
        The newest summary (an overlay, or a ``compact`` line at the beginning), and the messages after it.
    """
    summary: Line | None = None
    begin = 0
    for at, line in lines:
        if is_record(line) and line["kind"] in ("overlay", "compact"):
            summary, begin = line, first_kept((at, line)) if line["kind"] == "overlay" else at
    messages = [(at, line) for at, line in lines if not is_record(line)]
    kept = [(at, line) for at, line in messages if at >= begin]
    losses.add("messages that the summary stands for", len(messages) - len(kept))
    known = sum(1 for _, line in lines if is_record(line) and line["kind"] in ("overlay", "compact"))
    losses.add("earlier summaries", max(0, known - 1))
    others = sum(1 for _, line in lines if is_record(line)) - known
    losses.add("notes of edits and other records", others)
    return summary, kept


def text_of(content: object) -> str:
    """Return a content's text; of a list, its text blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(texts_of(content))


def texts_of(content: object) -> list[str]:
    """List the text blocks of a content."""
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [
        block["text"]
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]


def count_other_blocks(content: object, losses: Losses) -> None:
    """Count the blocks of a content that are no text: images and the like."""
    if isinstance(content, list):
        losses.add("blocks that are no text", len(content) - len(texts_of(content)))


def from_texts(texts: list[str], *, calls: bool = False) -> str | list[dict[str, str]] | None:
    """Make a line's content of text blocks: null where there is none beside tool calls."""
    if not texts:
        return None if calls else ""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant line."""

    id: str
    name: str
    arguments: Any


def calls_of(line: Mapping[str, Any]) -> list[Call]:
    """List the tool calls of a line; arguments are an object, or the text that is none."""
    found = line.get("tool_calls")
    calls = []
    for call in found if isinstance(found, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            calls.append(
                Call(
                    str(call.get("id", "")),
                    str(function.get("name", "")),
                    _arguments(function.get("arguments")),
                )
            )
    return calls


def _arguments(value: object) -> Any:
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def call_line(call: Call) -> dict[str, Any]:
    """Write a tool call as a transcript does."""
    function = {"name": call.name, "arguments": _as_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def result_line(id_: str, value: object, stamp: str, *, name: Any = None, is_error: bool = False) -> Line:
    """Write a tool's result as a transcript does; one that is no text as JSON."""
    return make_line(
        "tool", _as_text(value), stamp, tool_call_id=id_, name=name, is_error=True if is_error else None
    )


def _as_text(value: object) -> str:
    # What the writer takes as a field's value need not be an object: it goes in and out within one.
    return value if isinstance(value, str) else dump({"": value})[4:-1].decode()


def exchanges(lines: list[tuple[int, Line]]) -> list[list[tuple[int, Line]]]:
    """Cut lines into exchanges: a user line and all up to the next one; the first may lack its user line."""
    found: list[list[tuple[int, Line]]] = []
    for at, line in lines:
        if line.get("role") == "user" or not found:
            found.append([])
        found[-1].append((at, line))
    return found


def is_sound(line: Mapping[str, Any]) -> bool:
    """Say whether a line read from elsewhere has a role that every reader knows."""
    return line.get("role") in ("user", "assistant", "tool", "system")
