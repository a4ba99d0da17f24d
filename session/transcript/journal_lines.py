"""The lines of a key's journal: read from its bytes, written as bytes; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from durable import check_version
from session.errors import NewerFormat

VERSION = 1
Entry = dict[str, Any]


def read(data: bytes) -> tuple[list[tuple[Entry, int]], int]:
    """Read a journal's bytes: entries with their sizes, and where the last whole line ends.

    Raises:
        NewerFormat: a newer version wrote it.
    """
    keep = data.rfind(b"\n") + 1
    entries: list[tuple[Entry, int]] = []
    for raw in data[:keep].split(b"\n"):
        try:
            entry = json.loads(raw.strip(b"\0 "))
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        version = entry.get("v")
        if version is None:
            entries.append((entry, len(raw) + 1))
        else:
            check_version(version, VERSION, "a journal", error=NewerFormat)
    return entries, keep


def write(entry: Mapping[str, Any]) -> bytes:
    """Write one entry as a line."""
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def heading(key: str) -> bytes:
    """Write the first line of a journal."""
    return write({"v": VERSION, "key": key})
