"""Changes ended sessions under the lock of their key, without owning it: a turn may run there."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import durable
from durable import write_all, write_lines
from session.disk.layout import Layout
from session.errors import StoreError
from session.store.fence import Fence, Held, Wait
from session.store.recall_file import forget_index
from session.store.vectors import forget
from session.transcript import archive, journal_lines
from session.transcript.archive import Archived
from session.transcript.beginning import beginning
from session.transcript.loading import load
from session.transcript.transcript import Transcript, parse, read_time

HeadOf = Callable[[Transcript], bytes | None]


def find(layout: Layout, stem: str, session_id: str) -> tuple[Archived, Transcript] | None:
    """Read an ended session; None where it is gone."""
    found = archive.find(layout, session_id, stem=stem)
    read = load(found.path, stem) if found is not None else None
    return (found, read[0]) if found is not None and read is not None else None


def read_beginning(path: Path, stem: str) -> Transcript | None:
    """Read line 1 and the first whole messages of a session, active or ended.

    None: it is gone, or its line 1 is longer than any line may be, and nobody knows whose it is.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = beginning(file)
    # Between the listing and here it may have been reopened or deleted.
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}") from error
    return parse(data, stem=stem) if data is not None else None


def is_there(layout: Layout, stem: str, session_id: str) -> bool:
    """Say whether a session is the active one of its file, or lies in the archive.

    Raises:
        StoreError: the file cannot be read.
    """
    active = read_beginning(layout.transcript(stem), stem)
    if active is not None and active.session_id == session_id:
        return True
    return archive.find(layout, session_id, stem=stem) is not None


def renew_head(fence: Fence, layout: Layout, stem: str, session_id: str, head_of: HeadOf) -> bool:
    """Give an ended session the line 1 that ``head_of`` makes of it; None leaves it as it is.

    Returns:
        Whether there is such a session.

    Raises:
        StoreError: the disk refused; the file is as it was.
    """
    with fence.hold(Wait()) as held:
        found = find(layout, stem, session_id)
        head = head_of(found[1]) if found is not None else None
        if found is not None and head is not None:
            _replace(held, *found, head)
        return found is not None


def mend(fence: Fence, layout: Layout, ended: Archived, *, now: datetime) -> None:
    """Leave out of an ended session what no reader understands; the file as it was stays beside it.

    Raises:
        StoreError: the disk refused; the file is as it was.
    """

    def head_of(transcript: Transcript) -> bytes:
        updated = read_time(transcript.metadata.get("updated_at")) or now
        # Where line 1 was lost, the name of the file says which session it is.
        inner = {**transcript.inner, "session_id": ended.session_id}
        return transcript.head(now=updated, inner=inner)

    if not renew_head(fence, layout, ended.stem, ended.session_id, head_of):
        raise StoreError(f"{ended.path.name} is gone", hint="run verify again")


def _replace(held: Held, archived: Archived, transcript: Transcript, head: bytes) -> None:
    path: Path = archived.path
    try:
        # Its bytes have a second name before the file is replaced: a crash in between loses none of them.
        if transcript.needs_copy:
            os.link(path, path.with_name(f"{path.name}.corrupt-{durable.new_id()}"))
        with held.replacing(path) as fd:
            write_all(fd, head)
            write_lines(fd, transcript.messages)
    except OSError as error:
        raise StoreError(f"{path.name} could not be renewed: {error.strerror}") from error


def _forget_answers(held: Held, journal: Path, session_id: str) -> None:
    """Take what a session answered out of the journal of its key.

    Its messages stay known, as cleared ones. For two days the journal knows them by that, and no later write
    takes them out of a small one.
    """
    try:
        lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    kept = [_without_answers(raw, session_id) for raw in lines]
    if kept != lines:
        with held.replacing(journal) as target:
            write_all(target, b"\n".join(kept))


def _without_answers(raw: bytes, session_id: str) -> bytes:
    """Return a line of a journal: without texts those of the session, any other as it is."""
    entry = next((entry for entry, _ in journal_lines.read(raw + b"\n")[0]), {}) if raw else {}
    if entry.get("session") != session_id:
        return raw
    ids = entry.get("ids")
    if entry.get("do") != "ended" or not isinstance(ids, dict):
        return raw
    for id_, end in ids.items():
        # What has a kind is a reply or notice of the gateway's own, which was in no conversation.
        if isinstance(end, dict) and "kind" not in end:
            ids[id_] = {"final": end.get("final") is True, "kind": "cleared"}
    return journal_lines.write(entry).rstrip(b"\n")


def delete(
    fence: Fence, layout: Layout, stem: str, session_id: str, *, unless: Callable[[], bool] = lambda: False
) -> bool:
    """Remove an ended session for good, with what was kept of it when it was repaired.

    ``unless`` is asked under the lock, when nothing can change any more.

    Returns:
        Whether it was removed.

    Raises:
        StoreError: the disk refused.
    """
    with fence.hold(Wait()) as held:
        gone = False
        if unless():
            return False
        forget(layout, stem)
        try:
            meant = [found for found in archive.of_stem(layout, stem) if found.session_id == session_id]
            if meant:
                # Before its files: a crash in between leaves a session that is deleted by the next try.
                _forget_answers(held, layout.journal(stem), session_id)
            for found in meant:
                held.remove(found.path)
                gone = True
            for path in layout.archive(stem).glob(f"*-{session_id}.jsonl.corrupt-*") if gone else ():
                held.remove(path)
        except OSError as error:
            raise StoreError(f"a closed session could not be deleted: {error.strerror}") from error
        # A search that ran meanwhile may have kept a vector of what it still found.
        forget(layout, stem)
        forget_index(layout, stem)
        return gone
