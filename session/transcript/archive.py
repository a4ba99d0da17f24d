"""Ended sessions on disk: their names, where they lie, and how one is found by its ULID."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from session.disk.layout import Layout
from session.transcript.line import first_line, is_ulid

# What ``ended_by`` says in line 1 of a session that a compaction ended.
COMPACTION = "compaction"
# A name that is later than now by more was given by a wrong clock, and is followed no longer.
_AHEAD = timedelta(hours=1)
_NAME = re.compile(r"^(\d{8}T\d{6}Z)-([0-7][0-9A-HJKMNP-TV-Z]{25})\.jsonl$")


@dataclass(frozen=True, slots=True)
class Archived:
    """One ended session: its ULID, when it ended by its name, and the stem of its conversation."""

    path: Path
    stem: str
    session_id: str
    ended_at: datetime


def name_of(ended_at: datetime, session_id: str) -> str:
    """Name the archive of a session: when it ended, to the second in UTC, and its ULID."""
    return f"{ended_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{session_id}.jsonl"


def name_behind(ended_at: datetime, session_id: str, others: Sequence[Archived]) -> str:
    """Name the archive of a session so that it stands behind ``others`` of its chat, oldest first.

    Of several that end within one second, as with messages that waited, each gets a later one; and so does
    what ends after the clock was set back by up to an hour. One that ended under a clock further ahead is not
    followed.
    """
    name = name_of(ended_at, session_id)
    followed = (
        other
        for other in reversed(others)
        if other.session_id != session_id and other.ended_at - ended_at <= _AHEAD
    )
    newest = next(followed, None)
    if newest is None or newest.path.name < name:
        return name
    return name_of(newest.ended_at + timedelta(seconds=1), session_id)


def read_name(path: Path) -> Archived | None:
    """Read an archive's path; None for files that are none."""
    told = _told_by(path.name)
    return Archived(path, path.parent.name, *told) if told is not None else None


# Folders of thousands of them are listed again and again.
@lru_cache(maxsize=20_000)
def _told_by(name: str) -> tuple[str, datetime] | None:
    match = _NAME.match(name)
    if match is None:
        return None
    try:
        return match[2], datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def previous_in(line: Mapping[str, Any]) -> str | None:
    """Return the archive that a ``compact`` line names; None where it names none."""
    more = line.get("metadata")
    name = more.get("previousSession") if isinstance(more, Mapping) else None
    return name if isinstance(name, str) else None


def session_in(name: str) -> str:
    """Return the ULID in the name of an archive, which it keeps when it is renamed; empty without one."""
    found = name.removesuffix(".jsonl").rpartition("-")[2]
    return found if is_ulid(found) else ""


def of_stem(layout: Layout, stem: str) -> list[Archived]:
    """List the ended sessions of a conversation, oldest first."""
    folder = layout.archive(stem)
    paths = (folder / name for name, _ in names_of(layout, stem))
    return [found for path in paths if (found := read_name(path)) is not None]


def names_of(layout: Layout, stem: str) -> list[tuple[str, str]]:
    """List the ended sessions of a conversation as ``(file name, ULID)``, oldest first, in little time."""
    try:
        # Their names stand in the order in which they ended.
        names = sorted(os.listdir(layout.archive(stem)))  # noqa: PTH208 - names alone are wanted
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # A link to itself is no folder, either.
        if error.errno == errno.ELOOP:
            return []
        raise
    return [(name, told[0]) for name in names if (told := _told_by(name)) is not None]


def newest(layout: Layout, stem: str) -> Path | None:
    """Return the file of the session that ended last; None without one."""
    named = names_of(layout, stem)
    return layout.archive(stem) / named[-1][0] if named else None


def everywhere(layout: Layout, of: Callable[[str], bool] = lambda stem: True) -> Iterator[Archived]:
    """List the ended sessions of all conversations whose files have a name that ``of`` accepts."""
    for stem in stems(layout):
        if of(stem):
            yield from of_stem(layout, stem)


def stems(layout: Layout) -> list[str]:
    """List the conversations that may have ended sessions, by the names of their folders."""
    try:
        return sorted(os.listdir(layout.sessions / "archive"))  # noqa: PTH208 - names alone are wanted
    except FileNotFoundError:
        return []


def goes_on(found: Archived) -> bool:
    """Say whether an ended session goes on in the one after it, because a compaction ended it."""
    try:
        with found.path.open("rb") as file:
            head = orjson.loads(first_line(file) or b"")
    except (OSError, orjson.JSONDecodeError):
        return False
    inner = head.get("metadata") if isinstance(head, dict) else None
    return isinstance(inner, dict) and inner.get("ended_by") == COMPACTION


def find(layout: Layout, session_id: str, *, stem: str | None = None) -> Archived | None:
    """Find an ended session by its ULID, the newest of that name; None where there is none."""
    if not is_ulid(session_id):
        return None
    among = everywhere(layout) if stem is None else iter(of_stem(layout, stem))
    found = [archived for archived in among if archived.session_id == session_id]
    return max(found, key=lambda archived: archived.ended_at, default=None)
