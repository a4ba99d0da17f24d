"""The records of a file of JSON, and the times in them; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from session.interchange.conversation import BadFormat, Files, Losses
from session.transcript.line import MAX_LINE_BYTES, dump, read_time

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
