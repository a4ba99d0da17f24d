"""Finds what transcripts and archives keep of one message; reads alone, for threads."""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

from session.disk.layout import Layout
from session.errors import SessionError
from session.store.naming import resolve
from session.transcript import archive
from session.transcript.journal import Entry
from session.transcript.key import SessionKey
from session.transcript.life import Step, names, of_journal, of_lines
from session.transcript.loading import load


def of_message(layout: Layout, key: str, message_id: str, journal: Iterable[Entry]) -> list[Step]:
    """Tell what the files and the ``journal`` of a key say of a message, in no order.

    Raises:
        StoreError: they cannot be read.
    """
    stem = resolve(layout, SessionKey(key))
    steps = of_journal(journal, message_id)
    ended = [each.path for each in archive.of_stem(layout, stem)]
    for path in [*ended, layout.transcript(stem)]:
        if _holds(path, message_id) and (read := load(path, stem)) is not None:
            transcript, source = read[0], "archive" if path in ended else "transcript"
            session_id = transcript.session_id
            steps += of_lines(transcript.messages, message_id, session_id=session_id, source=source)
    return steps


def keys_with(layout: Layout, message_id: str) -> set[str]:
    """List the keys whose transcripts name a message; it looks through all of them.

    Raises:
        SessionError: as ``of_message``.
    """
    keys: set[str] = set()
    archives = (each.path for each in archive.everywhere(layout))
    for path in (*layout.sessions.glob("*.jsonl"), *archives):
        if _holds(path, message_id):
            stem = path.stem if path.parent == layout.sessions else path.parent.name
            # A file that cannot be read hides no other.
            with contextlib.suppress(SessionError):
                if (read := load(path, stem)) is not None:
                    keys.add(read[0].key)
    return {key for key in keys if of_message(layout, key, message_id, ())}


def _holds(path: Path, message_id: str) -> bool:
    """Say whether the bytes of a file name an id, however it is spelled."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(name) >= 0 for name in _spelled(message_id))
    # It is gone, or empty, which cannot be mapped.
    except (OSError, ValueError):
        return False


def _spelled(message_id: str) -> Iterator[bytes]:
    yield names(message_id)
    yield json.dumps(message_id).encode()
