"""The transcript's codec: bytes to lines and back, whatever the damage, without any I/O."""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from session.transcript.index import Derived, Exchange, Index
from session.transcript.key import derived_id, key_from_stem, marked_stem
from session.transcript.line import (
    MAX_LINE_BYTES,
    ROLES,
    decode,
    dump,
    encode,
    is_ulid,
    make_line,
    naive,
    read_time,
    stamp,
    time_of,
    whole_lines,
)
from session.transcript.lines import LINE_COST, Lines

# Deeper nesting ends Python's own parser, and with it every nanobot that loads the file.
MAX_DEPTH = 500
# Failed starts in one line: limits the work on a megabyte of garbage.
_MAX_TRIES = 256
_PADDING = b" \t\r\0"
_ROLES = ("user", "assistant", "tool", "system")
_START = re.compile(r'\{\s*"')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Rescued:
    """What a refused line held: whole records with their bytes, and what was wrong with the rest.

    Args:
        problem: empty if no byte was lost: the fast parser was only too strict.
        blank: there was nothing but white space and NUL bytes.
    """

    records: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    problem: str = ""
    blank: bool = False


def too_deep(raw: bytes) -> bool:
    """Say whether ``raw`` nests deeper than MAX_DEPTH; cheap for every ordinary line."""
    if len(raw) <= 2 * MAX_DEPTH or raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKEN.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def rescue(raw: bytes) -> Rescued:
    """Return every record that can be had from one line, in order."""
    bare = raw.strip(_PADDING)
    if not bare:
        return Rescued(blank=True)
    found = Rescued()
    if b"\0" in raw:
        found.problem = "NUL bytes beside a record"
    try:
        text = bare.decode()
    except UnicodeDecodeError:
        found.problem = "bytes that are not UTF-8"
        text = bare.decode("utf-8", "replace")
        bare = text.encode()
    if too_deep(bare):
        found.problem = f"nested deeper than {MAX_DEPTH} levels"
        return found
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        _take_apart(text, found)
        return found
    if isinstance(whole, dict):
        found.records.append((whole, bare))
    else:
        found.problem = "not an object"
    return found


def _take_apart(text: str, found: Rescued) -> None:
    """Collect the whole records of a line that is no JSON text: skip torn ones, split run-together ones."""
    position, covered, tries = 0, 0, 0
    while tries < _MAX_TRIES and (start := _START.search(text, position)) is not None:
        try:
            record, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            tries += 1
            position = start.start() + 1
            continue
        if _is_record(record):
            found.records.append((record, text[start.start() : end].encode("utf-8", "surrogatepass")))
            covered += end - start.start()
            position = end
        else:
            tries += 1
            position = start.start() + 1
    lost = len(text) - covered
    found.problem = found.problem or ("half a record" if lost else "several records on one line")


def _is_record(value: dict[str, Any]) -> bool:
    """Tell a record of its own from an object that stood inside a torn one."""
    return isinstance(value.get("_type"), str) or value.get("role") in _ROLES


_MAX_NOTED = 20


@dataclass(slots=True)
class Damage:
    """What stood in the file beside line 1 and message lines.

    Args:
        problems: the first lines whose bytes did not turn into an object in full, and why.
        unnamed: how many such lines there are besides.
        strays: of each other object that offsets count: how many messages stood before it.
        uncounted: how many other objects there are that no offset counts.
        nameless: how many of those have no ``_type`` either.
        heads: how many lines are a line 1.
        untidy: there was a byte order mark, a blank or NUL line, or line 1 was not the first.
    """

    problems: list[str] = field(default_factory=list)
    unnamed: int = 0
    strays: array[int] = field(default_factory=lambda: array("I"))
    uncounted: int = 0
    nameless: int = 0
    heads: int = 0
    untidy: bool = False

    def note(self, number: int, problem: str) -> None:
        """Record a damaged line by its number, from 1."""
        if len(self.problems) < _MAX_NOTED:
            self.problems.append(f"line {number}: {problem}")
        else:
            self.unnamed += 1


__all__ = [
    "MAX_LINE_BYTES",
    "ROLES",
    "Exchange",
    "Transcript",
    "decode",
    "dump",
    "encode",
    "make_line",
    "naive",
    "parse",
    "read_time",
    "stamp",
]

HEAD_FIELDS = ("_type", "key", "created_at", "updated_at", "metadata", "last_consolidated")
# nanobot's own writer leaves these out of its offsets, too.
_UNCOUNTED = ("provider_state",)


@dataclass(slots=True)
class Transcript:
    """A file's content.

    Args:
        metadata: line 1 whole.
        messages: the raw lines, which only ever grow.
        size: how many bytes were read.
        keep: how many of them are whole lines; what follows is a torn tail, or one of NUL bytes.
        open_end: the last record is whole but lacks its newline.
        body_at: where line 2 begins.
        line_bytes: how much memory the lines take if all are in memory, the list of them apart.
        whole: it was read as a whole since it cannot be read in parts.
        prepared: what is kept of its history for the next request; given up at any time.
    """

    stem: str
    metadata: dict[str, Any] = field(default_factory=dict)
    messages: list[bytes] | Lines = field(default_factory=list)
    index: Index = field(init=False)
    damage: Damage = field(default_factory=Damage)
    last_consolidated: int = 0
    size: int = 0
    keep: int = 0
    open_end: bool = False
    body_at: int = 0
    line_bytes: int = 0
    whole: bool = False
    prepared: Derived | None = None

    def __post_init__(self) -> None:
        self.index = Index(self.messages)

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        derived = 0 if self.prepared is None else self.prepared.weight
        if isinstance(self.messages, Lines):
            lines = self.messages.weight
        else:
            lines = self.line_bytes + sys.getsizeof(self.messages)
        return lines + self.index.weight + derived

    @property
    def key(self) -> str:
        """The conversation that line 1 names, else the one that the file name suggests."""
        named = self.metadata.get("key")
        if isinstance(named, str) and (named or self.stem == marked_stem(named)):
            return named
        return key_from_stem(self.stem)

    @property
    def inner(self) -> dict[str, Any]:
        """Line 1's ``metadata``; empty where it is missing or no object."""
        inner = self.metadata.get("metadata")
        return inner if isinstance(inner, dict) else {}

    @property
    def created_at(self) -> datetime | None:
        """When the session began: by line 1, else by its first message."""
        created = read_time(self.metadata.get("created_at"))
        if created is None and self.messages:
            created = time_of(decode(self.messages[0]))
        return created

    @property
    def session_id(self) -> str:
        """The ULID of the session; of a file that is not ours derived, the same at every look."""
        stored = self.inner.get("session_id")
        if isinstance(stored, str) and is_ulid(stored):
            return stored
        return derived_id(self.key, self.created_at)

    @property
    def history_start(self) -> int:
        """Where the history begins: ``last_consolidated``, or before it in one that was opened again."""
        opened, offset = self.inner.get("reopened"), self.last_consolidated
        if not isinstance(opened, dict) or opened.get("consolidated") != offset:
            return offset
        start = opened.get("history_from")
        return start if type(start) is int and 0 <= start < offset else offset

    @property
    def torn(self) -> bool:
        """Whether a tail must be cut before the next append."""
        return self.keep < self.size

    @property
    def damaged(self) -> bool:
        """Whether some bytes (a torn tail aside) did not turn into an object in full."""
        return bool(self.damage.problems)

    @property
    def needs_copy(self) -> bool:
        """Whether the first write would lose bytes, so that the original must be kept beside it."""
        damage = self.damage
        return bool(damage.problems or damage.strays) or damage.uncounted > 0 or damage.heads > 1

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the first write must renew the file as a whole: it is damaged, or line 1 is not as ours."""
        head, offset = self.metadata, self.metadata.get("last_consolidated")
        is_ours = (
            self.damage.heads == 1
            and head.get("key") == self.key
            and isinstance(head.get("metadata"), dict)
            and type(offset) is int
            and offset == self.last_consolidated
            and _is_naive(head.get("created_at"))
            and _is_naive(head.get("updated_at"))
        )
        return self.needs_copy or self.damage.untidy or not is_ours

    def grow(self, raw: bytes, line: Mapping[str, Any]) -> None:
        """Take in a message line that now stands at the end: first among the lines, as ``Index`` wants it.

        Other threads may read meanwhile.
        """
        # What orjson writes keeps its buffer of 4 kB behind it: a copy takes what the line takes.
        self.messages.append(bytes(memoryview(raw)))
        self.index.add(len(self.messages) - 1, line)
        if not isinstance(self.messages, Lines):
            self.line_bytes += len(raw) + LINE_COST

    def head(
        self, *, now: datetime, inner: Mapping[str, Any] | None = None, offset: int | None = None
    ) -> bytes:
        """Write a new line 1 (with its newline): the six fields first, unknown ones kept behind them.

        Args:
            now: the new ``updated_at``.
            inner: the new ``metadata``; None keeps it.
            offset: the new ``last_consolidated``; None keeps the one in force.
        """
        fields = dict(self.inner if inner is None else inner)
        fields.setdefault("session_id", self.session_id)
        if not is_ulid(fields["session_id"]):
            fields["session_id"] = self.session_id
        new: dict[str, Any] = {
            "_type": "metadata",
            "key": self.key,
            "created_at": naive(self.created_at or now),
            "updated_at": naive(now),
            "metadata": fields,
            "last_consolidated": self.last_consolidated if offset is None else offset,
        }
        old = self.metadata.get("created_at")
        if isinstance(old, str) and _is_naive(old):
            new["created_at"] = old
        new.update((name, value) for name, value in self.metadata.items() if name not in HEAD_FIELDS)
        return dump(new) + b"\n"


def fresh(stem: str, key: str, *, now: datetime, inner: Mapping[str, Any]) -> Transcript:
    """Begin a transcript without messages, as the first write will put it on disk."""
    head = {
        "_type": "metadata",
        "key": key,
        "created_at": naive(now),
        "updated_at": naive(now),
        "metadata": dict(inner),
        "last_consolidated": 0,
    }
    transcript = Transcript(stem, metadata=head)
    transcript.damage.heads = 1
    return transcript


def _is_naive(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is None
    except ValueError:
        return False


def parse(data: bytes, *, stem: str) -> Transcript:
    """Read a transcript's bytes; a bad line costs itself, never the file, and nothing raises.

    Args:
        data: the whole file.
        stem: its name without ``.jsonl``, from which the key comes where line 1 names none.
    """
    transcript = Transcript(stem, size=len(data))
    transcript.keep = transcript.size
    plain = _without_mark(data, transcript.damage)
    transcript.body_at = plain.find(b"\n") + 1 or len(data)
    count = at = 0
    while block := whole_lines(plain, at):
        lines = block[:-1].split(b"\n")
        if b"\r" in block:
            lines = [line.rstrip(b"\r") for line in lines]
        _read_lines(lines, count + 1, transcript)
        count, at = count + len(lines), at + len(block)
    if at < len(plain):
        _read_tail(plain[at:], count + 1, transcript)
    if plain is not data:
        # The first write renews the file as a whole: there is no tail to cut.
        transcript.keep, transcript.open_end = transcript.size, False
    transcript.last_consolidated = _offset_in_force(transcript)
    _convert_records(transcript)
    transcript.line_bytes = len(plain) + LINE_COST * len(transcript.messages)
    return transcript


def finish_parts(transcript: Transcript, tail: bytes) -> bool:
    """Take in what stands behind the last whole line of a transcript that was read in parts.

    Returns:
        False where its lines would not follow each other without a gap: only ``parse`` can read it.
    """
    if tail:
        _read_tail(tail, len(transcript.messages) + 2, transcript)
        if transcript.needs_copy or (transcript.open_end and transcript.messages[-1] != tail):
            return False
    transcript.last_consolidated = _offset_in_force(transcript)
    return True


def _without_mark(data: bytes, damage: Damage) -> bytes:
    if data.startswith(b"\xef\xbb\xbf"):
        damage.untidy = True
        return data[3:]
    wide = ""
    if data.startswith((b"\xff\xfe", b'{\0"\0')):
        wide = "utf-16-le"
    elif data.startswith((b"\xfe\xff", b'\0{\0"')):
        wide = "utf-16-be"
    if not wide:
        return data
    damage.note(1, "the file is UTF-16")
    return data.decode(wide, "replace").lstrip("\ufeff").encode("utf-8", "replace")


def _read_lines(lines: list[bytes], first: int, transcript: Transcript) -> None:
    """Read whole lines, counted from ``first``; the usual line takes the shortest way of a cold load."""
    loads, messages, add = orjson.loads, transcript.messages, transcript.index.add
    for number, raw in enumerate(lines, first):
        try:
            line = loads(raw)
        except orjson.JSONDecodeError:
            _read_refused(raw, number, transcript)
            continue
        if type(line) is not dict or (len(raw) > 1000 and too_deep(raw)):
            _read_refused(raw, number, transcript)
            continue
        role = line.get("role")
        if role not in ROLES or "_type" in line:
            _read_other(raw, line, number, transcript)
            continue
        if "message_id" in line or role == "system":
            add(len(messages), line)
        messages.append(raw)


def _read_refused(raw: bytes, number: int, transcript: Transcript) -> None:
    found = rescue(raw)
    if found.blank:
        transcript.damage.untidy = True
        return
    if found.problem:
        transcript.damage.note(number, found.problem)
    for line, piece in found.records:
        _read_record(piece, line, number, transcript)


def _read_record(raw: bytes, line: dict[str, Any], number: int, transcript: Transcript) -> None:
    if "_type" not in line and line.get("role") in ROLES:
        transcript.index.add(len(transcript.messages), line)
        transcript.messages.append(raw)
    else:
        _read_other(raw, line, number, transcript)


def _read_other(raw: bytes, line: dict[str, Any], number: int, transcript: Transcript) -> None:
    """Take in an object that is no message: metadata (the last one wins), or a stray that is kept aside."""
    damage = transcript.damage
    kind = line.get("_type")
    if kind == "metadata":
        if number > 1:
            damage.untidy = True
        damage.heads += 1
        transcript.metadata = decode(raw)
    elif kind in _UNCOUNTED:
        damage.uncounted += 1
    else:
        damage.strays.append(len(transcript.messages))
        damage.nameless += "_type" not in line


def _read_tail(tail: bytes, number: int, transcript: Transcript) -> None:
    """Decide what stands behind the last newline: a whole record, a torn one, or NUL bytes."""
    found = rescue(tail)
    torn_at = transcript.size - len(tail)
    if found.blank or not found.records:
        transcript.keep = torn_at
        return
    if found.problem:
        transcript.damage.note(number, found.problem)
    for line, piece in found.records:
        _read_record(piece, line, number, transcript)
    if number == 1 and transcript.damage.heads == 1 and len(found.records) == 1:
        transcript.body_at = transcript.size
    transcript.open_end = True


def _offset_in_force(transcript: Transcript) -> int:
    offset = transcript.metadata.get("last_consolidated")
    counted = len(transcript.messages) + len(transcript.damage.strays)
    if type(offset) is not int or not 0 <= offset <= counted:
        return 0
    return _converted(offset, transcript.damage.strays)


def _converted(offset: int, strays: Sequence[int]) -> int:
    before = sum(1 for number, messages in enumerate(strays) if messages + number < offset)
    return offset - before


def _convert_records(transcript: Transcript) -> None:
    """Let our own records point at the same messages once the strays are gone."""
    strays, messages = transcript.damage.strays, transcript.messages
    if not strays or isinstance(messages, Lines):
        return
    for at in transcript.index.records:
        line = decode(messages[at])
        changed = False
        for name in ("first_kept", "from"):
            value = line.get(name)
            if type(value) is int and value >= 0 and (new := _converted(value, strays)) != value:
                line[name] = new
                changed = True
        if changed:
            messages[at] = dump(line)
