"""One line of a transcript: times, JSON text, the order of its fields; how line 1 is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime, tzinfo
from typing import Any, BinaryIO

import orjson

from session.errors import LineTooLong

MAX_LINE_BYTES = 2**24
BLOCK_BYTES = 2**17
ROLES = ("user", "assistant", "tool", "system")
# No calendar goes back further than some centuries: whoever says 999,999 days means for ever.
FOR_EVER_DAYS = 36_500
_LEADING = ("tool_calls", "tool_call_id", "name")
_ULID = re.compile(r"^[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
_DIGITS = b"0" * 19
_SHAPE = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))


def stamp(at: datetime, zone: tzinfo) -> str:
    """Write ``at`` (aware) as ISO 8601 in ``zone``, with microseconds and offset."""
    return at.astimezone(zone).isoformat(timespec="microseconds")


def naive(at: datetime) -> str:
    """Write ``at`` as line 1 has it: the machine's local time, microseconds, no offset."""
    return at.astimezone().replace(tzinfo=None).isoformat(timespec="microseconds")


def read_time(value: object) -> datetime | None:
    """Read a time of any writer: ISO (naive is local), epoch seconds or milliseconds; else None."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value).astimezone()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            at = datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    # At either end of the calendar there are zones in which the time could not be written.
    return at if MINYEAR < at.year < MAXYEAR else None


def time_of(line: Mapping[str, Any]) -> datetime | None:
    """Return when a line says that it was written, ours or nanobot's; None where it does not."""
    return read_time(line.get("timestamp")) or read_time(line.get("created_at"))


def make_line(role: str, content: Any, at: str, **fields: Any) -> dict[str, Any]:
    """Build a message line in the order every reader expects; fields that are None are left out."""
    line: dict[str, Any] = {"role": role, "content": content, "timestamp": at}
    for name in _LEADING:
        if fields.get(name) is not None:
            line[name] = fields[name]
    for name, value in fields.items():
        if value is not None and name not in line:
            line[name] = value
    return line


def taken_back(record: Mapping[str, Any], at: int) -> range:
    """Return the indexes of the lines that a record which stands at ``at`` withdraws; empty for none."""
    since = record.get("from") if record.get("kind") == "undo" else None
    return range(since, at) if type(since) is int and since >= 0 else range(0)


def encode(line: Mapping[str, Any]) -> bytes:
    """Write one message line without its newline: valid JSON in valid UTF-8, raw beyond ASCII.

    Raises:
        LineTooLong: it is over MAX_LINE_BYTES.
        ValueError: it has no role that a reader knows.
    """
    if line.get("role") not in ROLES or "_type" in line:
        raise ValueError(f"a message line needs a role, got {line.get('role')!r}")
    raw = dump(line)
    if len(raw) > MAX_LINE_BYTES:
        raise LineTooLong(
            f"a line of {len(raw)} bytes is over {MAX_LINE_BYTES}", hint="the message or result is too large"
        )
    return raw


def dump(value: Mapping[str, Any]) -> bytes:
    """Write an object as JSON; numbers that JSON lacks become null, lone surrogates are escaped."""
    plain = dict(value)
    try:
        return orjson.dumps(plain)
    except (TypeError, ValueError):
        pass
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(plain), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text)).encode()


def finite(value: Any) -> Any:
    """Return a value in which each number that no JSON can hold, such as NaN, is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def decode(raw: bytes) -> dict[str, Any]:
    """Read the bytes of one message line as Python's ``json`` does."""
    if _DIGITS not in raw.translate(_SHAPE):
        try:
            fast: dict[str, Any] = orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass
        else:
            return fast
    line: dict[str, Any] = json.loads(raw.decode("utf-8", "surrogatepass"))
    return line


def decode_all(raws: Sequence[bytes]) -> list[dict[str, Any]]:
    """Read many message lines, each as ``decode`` does; in a third of the time."""
    joined = b",".join(raws)
    if _DIGITS not in joined.translate(_SHAPE):
        try:
            lines: list[dict[str, Any]] = orjson.loads(b"[%b]" % joined)
        except orjson.JSONDecodeError:
            pass
        else:
            if len(lines) == len(raws):
                return lines
    return [decode(raw) for raw in raws]


def is_ulid(text: object) -> bool:
    """Say whether ``text`` is a ULID in the only spelling that is accepted."""
    return isinstance(text, str) and _ULID.match(text) is not None


def whole_lines(data: bytes, at: int) -> bytes:
    """Return whole lines from ``at`` on with their newlines, about a block of them; empty where none follows.

    A line of three bytes costs forty as an object: those of a whole file at once are many times its size.
    """
    stop = data.rfind(b"\n", at, at + BLOCK_BYTES) + 1 or data.find(b"\n", at) + 1
    return data[at:stop]


# So much of what stands behind line 1 belongs to the beginning.
BEGINNING_BYTES = 256 * 1024


def first_line(file: BinaryIO) -> bytes | None:
    """Read line 1 with its newline, where it has one; None where it is longer than any line may be."""
    line = file.readline(MAX_LINE_BYTES + 1)
    return line if line.endswith(b"\n") or len(line) <= MAX_LINE_BYTES else None


def beginning(file: BinaryIO) -> bytes | None:
    """Read line 1 and the first whole lines behind it; None where line 1 is longer than any line may be."""
    first = first_line(file)
    if first is None:
        return None
    data = first + file.read(BEGINNING_BYTES)
    # A file of one line that lacks its newline is that line.
    return data[: data.rfind(b"\n") + 1] or data
