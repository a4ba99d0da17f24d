"""Lines of JSON objects: which of a file's bytes are none, and what is left without those; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator


def broken(data: bytes) -> tuple[int, int]:
    """Count the lines that are no object, and the bytes behind the last whole line that are none either."""
    keep = data.rfind(b"\n") + 1
    torn = len(data) - keep if data[keep:] and not is_object(data[keep:]) else 0
    return sum(1 for line in data[:keep].split(b"\n") if line.strip() and not is_object(line)), torn


def broken_at(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each such line begins, and its length without the newline; an unfinished one as well."""
    at = 0
    for line in data.split(b"\n"):
        if line.strip() and not is_object(line):
            yield at, len(line)
        at += len(line) + 1


def whole(data: bytes) -> bytes:
    """Return the data without those lines."""
    return b"".join(line + b"\n" for line in data.split(b"\n") if line.strip() and is_object(line))


def is_object(line: bytes) -> bool:
    """Say whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line.strip(b"\0 ")), dict)
    except (ValueError, RecursionError):
        return False


def told(lines: int, torn: int) -> str:
    """Say what ``broken`` has counted; empty where that is nothing."""
    said = [f"{lines} damaged {'line' if lines == 1 else 'lines'}"] if lines else []
    return ", ".join([*said, *([f"an unfinished line at the end ({torn} bytes)"] if torn else [])])
