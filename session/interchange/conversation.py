"""A conversation outside of any format, and what all codecs share in reading and writing one; pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from session.errors import SessionError
from session.transcript.history import deleted, edited, is_record
from session.transcript.line import MAX_LINE_BYTES, dump, make_line, read_time, taken_back

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


# Readers want a time where no file names one.
NO_TIME = "1970-01-01T00:00:00.000000+00:00"
# Decoded, a short line takes about 5 kB of memory.
MAX_LINES = 100_000


def check_size(files: Files) -> None:
    """Let pass JSONL files that memory has room for, before any line is decoded.

    Raises:
        BadFormat: a line is over ``MAX_LINE_BYTES``, or a file has over ``MAX_LINES``.
    """
    for path, data in files.items():
        if not path.endswith(".jsonl"):
            continue
        if data.count(b"\n") > MAX_LINES:
            hint = f"split {path}, or remove its oldest lines; each part needs line 1"
            raise BadFormat(f"{path} has over {MAX_LINES:,} lines", hint=hint)
        start, number = 0, 1
        while start < len(data):
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            if end - start > MAX_LINE_BYTES:
                hint = f"remove or shorten line {number} of {path}"
                raise BadFormat(f"line {number} of {path} is over {MAX_LINE_BYTES // 2**20} MB", hint=hint)
            start, number = end + 1, number + 1


def json_lines(data: bytes, losses: Losses) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSONL file; a torn end is passed over, other bad lines are counted."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, raw in enumerate(lines, 1):
        if raw.strip(b"\r\n\t \0"):
            found = _object(raw)
            if found is not None:
                yield found
            else:
                torn = number == len(lines)
                losses.add("an unfinished line at the end" if torn else "lines that are not JSON objects")


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


def live(conversation: Conversation, losses: Losses) -> list[tuple[int, Line]]:
    """List the lines, as edited, with their indexes; without ``undo`` records and what those took back."""
    gone: set[int] = set()
    for at, line in enumerate(conversation.lines):
        if is_record(line) and line["kind"] == "undo":
            gone.add(at)
            taken = {n for n in taken_back(line, at) if not is_record(conversation.lines[n])} - gone
            losses.add("messages that were withdrawn", len(taken))
            gone |= taken
    taken = deleted(conversation.lines) - gone
    losses.add("messages that were deleted", len(taken))
    gone |= taken
    return [(at, dict(line)) for at, line in enumerate(edited(conversation.lines)) if at not in gone]


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
    losses.add("messages that the summary replaces", len(messages) - len(kept))
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
    """Count the blocks of a content that are no text: images and the like; and one that is neither."""
    if isinstance(content, list):
        losses.add("blocks that are not text", len(content) - len(texts_of(content)))
    count_odd(content, losses)


def count_odd(content: object, losses: Losses) -> None:
    """Count a content that is neither a text nor a list of blocks."""
    losses.add("contents that are not text", not isinstance(content, str | list) and content is not None)


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


def new_call(id_: object, name: object, arguments: object, names: dict[str, str]) -> dict[str, Any]:
    """Write a tool call that was read elsewhere, and note its name by its id."""
    call = Call(str(id_), str(name), {} if arguments is None else arguments)
    names[call.id] = call.name
    return call_line(call)


def result_line(id_: str, value: object, stamp: str, *, name: Any = None, is_error: object = False) -> Line:
    """Write a tool's result as a transcript does; one that is no text as JSON."""
    failed = True if is_error is True else None
    return make_line("tool", _as_text(value), stamp, tool_call_id=id_, name=name, is_error=failed)


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


_LOOKED_AT = 20
_SHOWN = {
    "pi": "a session of pi or OpenClaw",
    "nanobot": "a session of nanobot",
    "annabelle": "a session of annabelle",
    "overlay": "a session.jsonl of overlay",
    "archive": "a file of archive",
    "rows": "a document of rows",
}


class Fit:
    """Counts the records of a file that are of the format, and those that are not."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._data = data
        self.fitting = 0
        self.strange = 0

    def count(self, fits: bool) -> bool:
        """Count a record and return ``fits`` itself."""
        self.fitting += fits
        self.strange += not fits
        return fits

    def check(self, wanted: str) -> None:
        """Let pass a file that is empty, or whose records fit for the greater part.

        Args:
            wanted: what each record should be, as it is told to a person.

        Raises:
            BadFormat: the file is something else; the hint says what it looks like.
        """
        if (self.fitting and self.fitting >= self.strange) or not self._data.strip(b"\xef\xbb\xbf\r\n\t \0"):
            return
        count = self.fitting + self.strange
        what = f"only {self.fitting} of {count} records are" if self.fitting else "none is"
        guess = look(self._data)
        cure = f"it looks like {_SHOWN[guess]}: --from {guess}" if guess else f"each line should be {wanted}"
        raise BadFormat(f"{self._path} is not a session of this format: {what} {wanted}", hint=cure)


def look(data: bytes) -> str:
    """Return the format that a file looks like; empty where nobody knows."""
    for record in islice(_records(data), _LOOKED_AT):
        if (found := _of(record)) is not None:
            return found
    return ""


def _records(data: bytes) -> Iterator[Mapping[str, Any]]:
    whole = json_object(data)
    yield from (whole,) if whole else json_lines(data, Losses())


def _of(record: Mapping[str, Any]) -> str | None:
    kind = record.get("type")
    if (kind == "session" and "id" in record) or (kind == "message" and "message" in record):
        return "pi"
    if (kind == "header" and "chatId" in record) or (kind == "turn" and "user" in record):
        return "annabelle"
    if record.get("_type") == "metadata":
        return "nanobot"
    if "recordType" in record:
        return "overlay"
    if "chat_sessions" in record:
        return "rows"
    if "role" in record and "ts" in record:
        return "archive"
    return "nanobot" if "role" in record and "content" in record and "type" not in record else None


_EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}


class Pictures:
    """Collects the images of one session; ``files`` is their content by its path in a workspace."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self.files: dict[str, bytes] = {}

    def take(self, blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return images as the attachments of a line; one that cannot be read is counted as lost."""
        found = []
        for block in blocks:
            mime, data = str(block.get("mimeType", "")), _bytes(block.get("data"))
            if not data or mime not in _EXTENSIONS:
                self._losses.add("images that are not base64 of PNG, JPEG, GIF or WebP")
                continue
            found.append(self._kept(data, "photo", f"photo{_EXTENSIONS[mime]}", mime))
        return found

    def keep(self, path: str, data: bytes) -> dict[str, Any]:
        """Return a file that a message names by its path as an attachment."""
        name = path.replace("\\", "/").rpartition("/")[2]
        mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return self._kept(data, "photo" if mime in _EXTENSIONS else "file", name, mime)

    def _kept(self, data: bytes, kind: str, name: str, mime: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        suffix = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
        ref = f"media/{digest[:2]}/{digest}{suffix.group().lower() if suffix else ''}"
        self.files[ref] = data
        return {"kind": kind, "name": name, "mime": mime, "size": len(data), "ref": ref}


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


def strings(value: object) -> list[str]:
    """Return the texts of a list; empty where it is none."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def each_session(files: Files, decode: Callable[[str, bytes], Conversation]) -> list[Conversation]:
    """Read each JSONL file as one session; a file that is alone may be called anything."""
    return [decode(path, data) for path, data in files.items() if path.endswith(".jsonl") or len(files) == 1]
