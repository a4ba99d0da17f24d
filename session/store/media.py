"""Files of ``media/``: those that conversations name, and those that nothing names any more."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from session.disk.layout import Layout
from session.transcript.line import decode, read_time

log = structlog.get_logger("media")

_REF = re.compile(rb'"media/[^"\\]{1,200}"')
_BLOCK_BYTES = 2**20
_OVERLAP = 256
Named = dict[str, datetime]
# How long a file stays that letters may name which nobody can look at.
UNREAD_FOR: Final = timedelta(hours=48)


@dataclass(frozen=True, slots=True)
class AwaitedFiles:
    """The files that letters name whose lines are yet to be written.

    Args:
        names: paths in the workspace, ``media/…``.
        complete: whether every letter that waits was looked at; else ``names`` are of the parked ones alone.
    """

    names: frozenset[str] = frozenset()
    complete: bool = False


UNKNOWN: Final = AwaitedFiles()


def named_in(messages: Iterable[bytes], *, unknown: datetime | None = None) -> Named:
    """Return the files that message lines name, each with the time of its newest line.

    Args:
        messages: the lines, damaged ones among them.
        unknown: the time of a line that does not tell its own; None: such a line names nothing.
    """
    found: Named = {}
    for raw in messages:
        if b'"media/' not in raw:
            continue
        at = _time_of(raw) or unknown
        if at is None:
            continue
        for ref in _REF.findall(raw):
            name = ref[1:-1].decode("utf-8", "replace")
            found[name] = max(at, found.get(name, at))
    return found


def named_in_files(paths: Iterable[Path]) -> Named:
    """Return the files that transcripts name; one that cannot be read names none.

    A damaged line still shows what it names. It was written before its file was last changed.
    """
    found: Named = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                changed = read_time(os.fstat(file.fileno()).st_mtime)
                for name, at in named_in(_lines(file), unknown=changed).items():
                    found[name] = max(at, found.get(name, at))
        except OSError as error:
            # Files that only this session names count as unnamed, and stay until they are old.
            log.warning("session.unread", file=path.name, error=str(error.strerror))
    return found


def let_go(layout: Layout, gone: Mapping[str, datetime], awaited: AwaitedFiles, *, now: datetime) -> int:
    """Delete files that were named by lines that are no more, unless another line or a letter names them.

    A file is dated when a message brings it, and the line of that message is later: one that is younger than
    the lines that named it was brought again by a message on its way. Where not every letter could be looked
    at, what was brought in the last 48 hours stays; the sweep takes it later.

    Returns:
        How many were deleted.
    """
    found = {name: path for name in gone if (path := within(layout.workspace, name)) is not None}
    if not found:
        return 0
    wanted = still_named(layout, set(found))
    count = 0
    for name, path in found.items():
        if name in wanted or name in awaited.names:
            continue
        until = gone[name] if awaited.complete else min(gone[name], now - UNREAD_FOR)
        # Of one that stays the lines are gone all the same: the sweep of unnamed files finds it later.
        count += delete_older(path, name, until)
    if count:
        log.info("media.deleted", count=count)
    return count


def delete_older(path: Path, name: str, until: datetime) -> bool:
    """Delete a file that nothing brought again since ``until``; say whether it is gone now.

    It stays where the disk refuses.
    """
    try:
        # Looked at right before: a message may have brought it again while the transcripts were read.
        if path.stat().st_mtime <= until.timestamp():
            path.unlink()
            return True
    except OSError as error:
        log.warning("media.kept", file=name, error=str(error.strerror))
    return False


def still_named(layout: Layout, names: set[str]) -> set[str]:
    """Look through everything below ``sessions/``: also what is damaged, or kept aside."""
    wanted: set[str] = set()
    try:
        for path in _files_below(layout.sessions):
            with path.open("rb") as file:
                tail = b""
                while block := file.read(_BLOCK_BYTES):
                    text = tail + block
                    wanted |= {ref[1:-1].decode("utf-8", "replace") for ref in _REF.findall(text)} & names
                    tail = text[-_OVERLAP:]
            if wanted == names:
                break
    except OSError:
        # Another conversation may name them in the file or folder that cannot be read: nothing is deleted.
        return names
    return wanted


def _files_below(top: Path) -> Iterator[Path]:
    """Yield the files below a folder; of one that cannot be listed the refusal is raised, not passed over."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for folder, _, names in os.walk(top, onerror=refused):
        yield from (path for name in names if (path := Path(folder, name)).is_file())


def within(workspace: Path, name: str) -> Path | None:
    """Return the regular file of ``media/`` that a line names; None for everything else."""
    path = workspace / name
    if ".." in path.parts or path.is_symlink() or not path.is_file():
        return None
    home = (workspace / "media").resolve()
    return path if path.resolve().is_relative_to(home) else None


def _lines(file: Iterable[bytes]) -> Iterable[bytes]:
    return (line.rstrip(b"\r\n") for line in file)


def _time_of(raw: bytes) -> datetime | None:
    try:
        line: object = decode(raw)
    except (ValueError, RecursionError):
        return None
    return read_time(line.get("timestamp")) if isinstance(line, dict) else None


# As the files of messages are named. Letters are searched for such names: no other file is ever swept.
NAME = re.compile(r"media/([0-9a-f]{2})/(\1[0-9a-f]{62}(?:\.[a-z0-9]{1,10})?)")


def sweep(layout: Layout, awaited: AwaitedFiles, *, before: datetime) -> int:
    """Delete files that neither a line nor a letter names and that were last brought before ``before``.

    ``awaited`` was read before this is called: a letter leaves its queue only when its line is on disk, so
    that what is in neither place was named by no letter then. Later letters date their files anew. Where
    not every letter could be looked at, nothing is deleted.

    Returns:
        How many were deleted.
    """
    if not awaited.complete:
        return 0
    old = _older(layout, awaited.names, before)
    if not old:
        return 0
    unnamed = old - still_named(layout, old)
    count = sum(delete_older(layout.workspace / name, name, before) for name in unnamed)
    if count:
        log.info("media.swept", count=count)
    return count


def media_bytes(layout: Layout) -> int:
    """Return how much the files of ``media/`` take; one that goes meanwhile counts as nothing."""
    size = 0
    for path in (layout.workspace / "media").rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:
            # Somebody else removed it meanwhile.
            continue
    return size


def _older(layout: Layout, names: Collection[str], before: datetime) -> set[str]:
    found: set[str] = set()
    # The two levels at which messages' files lie; a file that is being fetched lies above them.
    for path in (layout.workspace / "media").glob("[0-9a-f][0-9a-f]/*"):
        name = path.relative_to(layout.workspace).as_posix()
        try:
            old = path.stat().st_mtime < before.timestamp()
        except OSError:
            continue
        if old and NAME.fullmatch(name) and name not in names and within(layout.workspace, name) is not None:
            found.add(name)
    return found
