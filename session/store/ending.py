"""Ends a session: archived and begun anew, or deleted; a crash may follow every step. Runs in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import durable
from session.store import places
from session.store.change import SessionChange, changing, remove_archive
from session.store.enclosed import UNKNOWN, AwaitedFiles, Named, let_go, named_in, named_in_files
from session.store.journal_rows import JournalRows
from session.store.line1_fields import for_the_next
from session.store.original import originals_of
from session.store.recall_file import forget_index
from session.store.split import Parted, ended_before, place_of, recent_ids
from session.store.vectors import forget
from session.store.writer import TranscriptWriter, again
from session.transcript import archive
from session.transcript.journal import Entry
from session.transcript.transcript import Transcript, fresh

# The lines are the last to go, and an index is open in other processes.
_REMOVED_APART = ("transcript", "index", "recall")


def end(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
    *,
    metadata: Mapping[str, Any] | None,
    ended: Callable[[Transcript], datetime | None] = lambda _: None,
) -> Path | None:
    """Archive the session and begin a fresh one; return the archive, None where there was no message.

    ``ended``, asked under the lock, says of one in which no turn runs when it ended; None is now.

    The archive is whole on disk first, then the journal knows the ended ids, then the fresh file takes the
    transcript's place in one rename. Done again after a crash in between, it replaces its own archive. The
    lines of a turn that still runs go over into the fresh session, where it goes on.

    Raises:
        Fenced, StoreError.
    """

    def once() -> Path | None:
        with changing(writer, journal_rows) as change:
            transcript = change.transcript
            stop = ended_before(transcript, change.journal_state, change.now)
            if change.fd is None or not stop:
                return None
            at = ended(transcript) if stop == len(transcript.messages) else None
            return _end(change, stop, metadata=metadata, ended_at=at)

    return again(once)


def _end(
    change: SessionChange, stop: int, *, metadata: Mapping[str, Any] | None, ended_at: datetime | None
) -> Path:
    transcript, now = change.transcript, change.now
    parted = Parted(transcript, stop)
    path = change.archive(stop, metadata=metadata, ended_at=ended_at, more=parted.left_behind)
    following = durable.new_id(now)
    change.journal(change.ended(path, stop=stop, following=following))
    inner = for_the_next(transcript.inner)
    inner |= {"session_id": following, "previous_session": transcript.session_id}
    change.begin_anew(fresh(transcript.stem, change.writer.key, now=now, inner=inner), more=parted.moved)
    return path


@dataclass(frozen=True, slots=True)
class Clearing:
    """What is to be cleared: the arguments of ``Store.clear``."""

    ids: Sequence[str]
    of: str | None
    everything: bool
    awaited: AwaitedFiles = UNKNOWN


def clear(writer: TranscriptWriter, journal_rows: JournalRows, what: Clearing) -> bool:
    """Delete the active transcript: recent ids and given ones are journalled as cleared.

    Raises:
        Moved, NewerFormat, StoreError.
    """

    def once() -> bool:
        with changing(writer, journal_rows) as change:
            if what.of is not None and change.transcript.session_id != what.of:
                return False
            # No turn keeps a vector from here on: a write asks for the session first.
            forget(writer.layout, writer.stem)
            files = media_of(writer, ended=what.everything)
            if what.everything:
                _remove_the_rest(change)
            _journal_cleared(change, what)
            if change.fd is not None:
                for copy in originals_of(writer.path):
                    remove_archive(copy)
                change.remove()
            # Both behind the lines, or a search that runs at this moment would take them in again.
            forget(writer.layout, writer.stem)
            forget_index(writer.layout, writer.stem)
            let_go(writer.layout, files, what.awaited, now=change.now)
            return change.fd is not None

    return again(once)


def _journal_cleared(change: SessionChange, what: Clearing) -> None:
    place = place_of(change.transcript)
    cleared = dict.fromkeys([*recent_ids(change.transcript, change.journal_state, change.now), *what.ids])
    entries: list[Entry] = [{**change.entry("end"), "id": id_, "kind": "cleared"} for id_ in cleared]
    if change.fd is not None or (what.everything and change.seq):
        # The count goes on behind it. While the lines still stand, after a crash, their numbers are the same.
        entries.append(change.base(place.session, finals=place.finals))
    if what.everything:
        # In one rename: nothing else stays of the journal, and at no moment is there less than this.
        change.journal_anew(*entries)
    elif entries:
        change.journal(*entries)


def media_of(writer: TranscriptWriter, *, ended: bool = True) -> Named:
    """Return the files of ``media/`` that a chat names; with ``ended`` its ended sessions count as well."""
    older = archive.of_stem(writer.layout, writer.stem) if ended else ()
    archived = named_in_files(found.path for found in older)
    active = named_in(writer.transcript.messages)
    return {
        name: max(part[name] for part in (archived, active) if name in part) for name in archived | active
    }


def _remove_the_rest(change: SessionChange) -> None:
    """Delete all else of a chat but lines and journal; who renews an ended session waits for our lock."""
    writer = change.writer
    layout, stem = writer.layout, writer.stem
    scopes = places.with_agents(layout, [f"chats/{stem}"])
    own = chain(places.of_key(layout, writer.key, stem), *(places.of_scope(layout, each) for each in scopes))
    places.remove(found for found in own if found.place.kind not in _REMOVED_APART)
    for scope in scopes:
        places.remove_trees(layout, stem=stem, scope=scope)
