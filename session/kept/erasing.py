"""What is owed of an erasure until it is whole, and what it removed; blocks, for threads.

An erasure is a file in ``state/erasing/`` before anything is touched, and until nothing is left. Whoever is
killed in the midst leaves it there, and the next start, or the same command again, ends what it began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from durable import make_folder, sync_folder
from session.disk.layout import Layout
from session.disk.state import locked, read_state, write_state
from session.errors import StoreError
from session.kept.subject import Conversation, Subject
from session.store import places
from session.store.derived import discard_index
from session.store.media import Named, within
from session.store.trees import open_up
from session.subagents.records import SubagentFiles, remove_conversation
from session.transcript.line import read_time

log = structlog.get_logger("erasing")
FOLDER = "erasing"
_LATE = ("job", "approval", "subagent", "shown facts", "left by half")


@dataclass(slots=True)
class Removed:
    """What was removed of one kind: files, or rows of a file that is of all."""

    kind: str
    count: int = 0
    bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as a row of the command line and of the API."""
        return {"kind": self.kind, "count": self.count, "bytes": self.bytes}


@dataclass(slots=True)
class Erased:
    """What an erasure did, kind by kind, and what is still there with the reason."""

    name: str
    removed: dict[str, Removed] = field(default_factory=dict)
    stays: list[str] = field(default_factory=list)

    def add(self, kind: str, count: int, size: int = 0) -> None:
        """Count what was removed."""
        if count:
            each = self.removed.setdefault(kind, Removed(kind))
            each.count, each.bytes = each.count + count, each.bytes + size

    def as_dict(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "name": self.name,
            "removed": [self.removed[kind].as_dict() for kind in sorted(self.removed)],
            "stays": self.stays,
        }


class Owed:
    """The erasures that are not whole."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def keep(self, subject: Subject) -> Subject:
        """Make an erasure durable before it begins.

        Returns:
            The subject, with what an earlier try that did not end still knew of it.

        Raises:
            StoreError: the disk refused; nothing may be removed.
        """
        path = self.path(subject)
        known = _subject(read_state(path))
        whole = subject if known is None else _joined(subject, known)
        make_folder(self._folder)
        write_state(path, _content(whole))
        return whole

    def left(self) -> list[Subject]:
        """List the erasures that did not end.

        Raises:
            StoreError, NewerFormat: one cannot be read.
        """
        found = map(self.read, self.orders())
        return [subject for subject in found if subject is not None]

    def orders(self) -> list[Path]:
        """List the files of the erasures that did not end."""
        return sorted(self._folder.glob("*.json"))

    def read(self, path: Path) -> Subject | None:
        """Read one of ``orders``; None: it is damaged, or done.

        Raises:
            StoreError, NewerFormat: it cannot be read.
        """
        return _subject(read_state(path))

    def done(self, subject: Subject) -> None:
        """Forget an erasure: nothing is left to remove.

        Raises:
            StoreError: the disk refused; it is done again.
        """
        try:
            self.path(subject).unlink(missing_ok=True)
            if self._folder.is_dir():
                sync_folder(self._folder)
        except OSError as error:
            raise StoreError(f"the deletion could not be completed: {error.strerror}") from error

    def path(self, subject: Subject) -> Path:
        """Return the file that says that an erasure is owed."""
        kind = "person" if subject.is_person else "key"
        mark = hashlib.sha256(f"{kind} {subject.name}".encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f"{mark[:32]}.json"


def count(layout: Layout, subject: Subject, erased: Erased) -> None:
    """Count the subject's files before they are removed, those in folders that are shut as well."""
    for scope in subject.scopes:
        open_up(places.files_of(layout, scope))
    for found in subject.files(layout):
        if found.place.use != "guard":
            erased.add(found.place.kind, 1, found.size)


def count_media(layout: Layout, media: Iterable[str]) -> dict[str, int]:
    """Return the bytes of the files of ``media/`` that are there, by name."""
    found = {name: path for name in media if (path := within(layout.workspace, name)) is not None}
    return {name: path.stat().st_size for name, path in found.items()}


def remove_late(layout: Layout, subject: Subject) -> None:
    """Remove what was written while the conversations were cleared: notes, files of tools, jobs, indexes.

    Lines that came since are a new conversation's, and stay with its journal.

    Raises:
        StoreError: the disk refused; call it again.
    """
    for each in subject.conversations:
        with locked(layout.lock(each.stem)):
            late = (
                found for found in places.of_key(layout, each.key, each.stem) if found.place.kind in _LATE
            )
            places.remove(late)
    for key in subject.subagents:
        remove_conversation(Layout(SubagentFiles(layout.workspace / "state").home), key)
    for scope in subject.scopes:
        own = (found for found in places.of_scope(layout, scope) if found.place.kind != "recall")
        places.remove(own)
        places.remove_trees(layout, scope=scope)
        discard_index(layout, scope)


def _content(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "person": subject.is_person,
        "conversations": [[each.key, each.stem] for each in subject.conversations],
        "scopes": list(subject.scopes),
        "jobs": list(subject.jobs),
        "media": {name: at.isoformat() for name, at in subject.media.items()},
        "sessions": sorted(subject.sessions),
        "typed": subject.typed,
        "stays": list(subject.stays),
        "subagents": list(subject.subagents),
    }


def _subject(content: dict[str, Any]) -> Subject | None:
    try:
        media: Named = {}
        for name, text in content["media"].items():
            at = read_time(text)
            if isinstance(at, datetime):
                media[name] = at
        return Subject(
            str(content["name"]),
            content["person"] is True,
            tuple(Conversation(str(key), str(stem)) for key, stem in content["conversations"]),
            tuple(map(str, content["scopes"])),
            tuple(map(str, content["jobs"])),
            media,
            frozenset(map(str, content["sessions"])),
            content["typed"] is True,
            tuple(map(str, content["stays"])),
            tuple(map(str, content.get("subagents", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        if content:
            log.warning("erasure.unreadable")
        return None


def _joined(subject: Subject, known: Subject) -> Subject:
    def both(ours: Iterable[Any], theirs: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys([*ours, *theirs]))

    return Subject(
        subject.name,
        subject.is_person,
        both(subject.conversations, known.conversations),
        both(subject.scopes, known.scopes),
        both(subject.jobs, known.jobs),
        {**known.media, **subject.media},
        subject.sessions | known.sessions,
        subject.typed or known.typed,
        both(subject.stays, known.stays),
        both(subject.subagents, known.subagents),
    )
