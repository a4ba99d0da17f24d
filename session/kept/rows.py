"""Lines of one subject in the files that count what models cost: shown, and made nobody's."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from durable import sync_data
from session.disk.state import locked
from session.errors import StoreError
from session.kept.subject import Subject

# Stands for a key that is no more. It is shorter than any, so that a line keeps its length.
ERASED: Final = "-"


def usage_of(state: Path, subject: Subject) -> list[bytes]:
    """Return the lines of the subject, oldest day first, without their newlines."""
    keys, payers = set(subject.keys), subject.payers
    return [
        raw
        for path in _days(state)
        for _, raw, line in _lines(path.read_bytes())
        if _is_of(line, keys, payers)
    ]


def forget_usage(state: Path, subject: Subject) -> int:
    """Take key, person and job out of the subject's lines; what they cost still counts for their day.

    Other processes append to these files and remember how far they have read, so that a line is written over
    in its place and keeps its length. What is held for a turn that has not ended is held no more.

    Returns:
        How many lines were changed.

    Raises:
        StoreError: the disk refused; call it again.
    """
    keys, payers, count = set(subject.keys), subject.payers, 0
    if not _days(state):
        return 0
    try:
        with locked(state / "usage.lock"):
            for path in _days(state):
                count += _forget_in(path, keys, payers)
    except OSError as error:
        raise StoreError(f"the usage records could not be changed: {error.strerror}") from error
    return count


def _forget_in(path: Path, keys: Collection[str], payers: Collection[str]) -> int:
    found = [each for each in _lines(path.read_bytes()) if _is_of(each[2], keys, payers)]
    if not found:
        return 0
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for at, raw, line in found:
            os.pwrite(fd, _nobodys(line, len(raw), of_key=line.get("key") in keys), at)
        sync_data(fd)
    finally:
        os.close(fd)
    return len(found)


def _nobodys(line: dict[str, Any], size: int, *, of_key: bool) -> bytes:
    if "hold" in line:
        return b" " * size
    gone = {"person": ""} | ({"key": ERASED, "job": None, "id": None} if of_key else {})
    kept = {name: gone.get(name, value) for name, value in line.items()}
    data = orjson.dumps({name: value for name, value in kept.items() if value is not None})
    # A line of another program may be written closer than ours: then it is left out, and its cost with it.
    return data.ljust(size) if len(data) <= size else b" " * size


def _is_of(line: dict[str, Any], keys: Collection[str], payers: Collection[str]) -> bool:
    return line.get("key") in keys or line.get("person") in payers or line.get("job") in keys


def _days(state: Path) -> list[Path]:
    return sorted((state / "usage").glob("*.jsonl"))


def _lines(data: bytes) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Yield each whole line that can be read, with the byte at which it begins."""
    at = 0
    for raw in data.split(b"\n")[:-1]:
        try:
            line = orjson.loads(raw) if raw.strip() else None
        except orjson.JSONDecodeError:
            line = None
        if isinstance(line, dict):
            yield at, raw, line
        at += len(raw) + 1
