"""The text of ``cron/jobs.json``: from bytes, whole or torn, to rows and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

VERSION: Final = 1
_JOBS: Final = re.compile(r'"jobs"\s*:\s*\[')
_ID: Final = re.compile(r'"id"\s*:\s*"((?:[^"\\]|\\.)*)"')
_MOST_FAILED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a file is not as it should be; ``newer``: a later version of the format, not to be written."""

    text: str
    cure: str
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A stretch of a damaged file out of which no job could be read."""

    id: str | None
    text: str
    cure: str = "correct it there"


@dataclass(frozen=True, slots=True)
class Document:
    """A file taken apart.

    Args:
        top: its outermost object, as far as there is one.
        rows: what stands in ``jobs``, sound or not.
        plain: the fast codec reads it, so that it may write it, too.
    """

    top: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)
    plain: bool = True
    fault: Fault | None = None
    lost: tuple[Lost, ...] = ()


def decode(data: bytes | None) -> Document:
    """Take a file apart, as far as it goes; None is a file that is not there."""
    if data is None:
        return Document()
    try:
        content, plain = _load(data)
    except ValueError as error:
        return _rescue(data, str(error))
    except RecursionError:
        return _rescue(data, "nested too deeply")
    if isinstance(content, list):
        return Document(rows=content, plain=plain, fault=_fault("it is a list, not an object with jobs"))
    if not isinstance(content, dict):
        return Document(plain=plain, fault=_fault("it contains no jobs"))
    rows, version = content.get("jobs", []), content.get("version", VERSION)
    if not isinstance(rows, list):
        return Document(content, plain=plain, fault=_fault("jobs is not a list"))
    fault = None
    if type(version) is int and version > VERSION:
        cure = "update chat-gateway; its jobs run, but the file is not changed"
        fault = Fault(f"version {version} of the format is newer than {VERSION}", cure, newer=True)
    return Document(content, rows, plain, fault)


def encode(document: Document) -> bytes:
    """Write a file as nanobot does."""
    top = {"version": VERSION, **document.top, "jobs": document.rows}
    if document.plain:
        try:
            return orjson.dumps(top, option=orjson.OPT_INDENT_2)
        except TypeError:
            # A number of over 64 bits or half of a surrogate pair is JSON, but not for every parser.
            pass
    return json.dumps(top, indent=2).encode()


def _load(data: bytes) -> tuple[Any, bool]:
    try:
        return orjson.loads(data), True
    except orjson.JSONDecodeError:
        return json.loads(data), False


def _fault(text: str) -> Fault:
    return Fault(text, 'correct it: {"version": 1, "jobs": [ … ]}')


def _rescue(data: bytes, why: str) -> Document:
    """Read the jobs that stand whole in a file that is no JSON."""
    text = data.decode("utf-8", "replace")
    found = _JOBS.search(text)
    rows: list[Any] = []
    lost: list[Lost] = []
    torn = found.end() if found else 0
    for row, begin, end in _objects(text, torn):
        _lose(text, torn, begin, lost)
        rows.append(row)
        torn = end
    _lose(text, torn, len(text), lost)
    return Document(
        rows=rows,
        plain=False,
        fault=Fault(f"it is not JSON ({why})", "correct it; its intact jobs run meanwhile"),
        lost=tuple(lost),
    )


def _objects(text: str, start: int) -> Iterator[tuple[Any, int, int]]:
    """Yield each whole object from ``start`` on that has the look of a job, with where it stands."""
    decoder = json.JSONDecoder()
    position = text.find("{", start)
    failed = 0
    while position >= 0 and failed < _MOST_FAILED:
        try:
            row, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            row, end = None, position + 1
        if isinstance(row, dict) and "id" in row and "schedule" in row:
            yield row, position, end
        else:
            end, failed = position + 1, failed + 1
        position = text.find("{", end)


def _lose(text: str, begin: int, end: int, lost: list[Lost]) -> None:
    """Note what stands between two jobs, where it is more than what belongs there."""
    between = text[begin:end]
    at = between.find("{")
    if at < 0:
        return
    found = _ID.search(between)
    line = text.count("\n", 0, begin + at) + 1
    lost.append(Lost(found[1] if found else None, f"line {line}: no complete job"))
