"""Changes ended sessions under the lock of their key; a turn of the key may run meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import durable
from durable import Change, beside_file, sync_folder, write_all, write_lines
from session.disk.layout import Layout
from session.disk.state import locked
from session.errors import StoreError
from session.store.derived import forget, forget_index
from session.store.state import StoreState, encoded
from session.transcript import archive
from session.transcript.archive import Archived
from session.transcript.loading import load, read_beginning
from session.transcript.transcript import Transcript, decode, dump, read_time

HeadOf = Callable[[Transcript], bytes | None]


@contextmanager
def archive_file(path: Path) -> Iterator[int]:
    """Open a file for what is to stand under ``path`` in the archive; at the end it is there, durable."""
    # What a killed writer leaves is used by the next one, whichever session that ends.
    with beside_file(path.with_name("ending"), inherit=True) as (fd, temp):
        yield fd
        os.fsync(fd)
        temp.rename(path)
    sync_folder(path.parent)


def remove_archive(path: Path) -> None:
    """Delete a file of the archive, durable."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def keep_beside(path: Path) -> None:
    """Give a damaged file of the archive a second name, so that its bytes stay when it is replaced."""
    os.link(path, path.with_name(f"{path.name}.corrupt-{durable.new_id()}"))


def find(layout: Layout, stem: str, session_id: str) -> tuple[Archived, Transcript] | None:
    """Read an ended session; None where it is gone."""
    found = archive.find(layout, session_id, stem=stem)
    read = load(found.path, stem) if found is not None else None
    return (found, read[0]) if found is not None and read is not None else None


def is_there(layout: Layout, stem: str, session_id: str) -> bool:
    """Say whether a session is the active one of its file, or lies in the archive.

    Raises:
        StoreError: the file cannot be read.
    """
    active = read_beginning(layout.transcript(stem), stem)
    if active is not None and active.session_id == session_id:
        return True
    return archive.find(layout, session_id, stem=stem) is not None


def renew_head(layout: Layout, stem: str, session_id: str, head_of: HeadOf) -> bool:
    """Give an ended session the line 1 that ``head_of`` makes of it; None leaves it as it is.

    Returns:
        Whether there is such a session.

    Raises:
        StoreError: the disk refused; the file is as it was.
    """
    with locked(layout.lock(stem)):
        found = find(layout, stem, session_id)
        head = head_of(found[1]) if found is not None else None
        if found is not None and head is not None:
            _replace(*found, head)
        return found is not None


def mend(layout: Layout, ended: Archived, *, now: datetime) -> None:
    """Leave out of an ended session what no reader understands; the file as it was stays beside it.

    Raises:
        StoreError: the disk refused; the file is as it was.
    """

    def head_of(transcript: Transcript) -> bytes:
        updated = read_time(transcript.metadata.get("updated_at")) or now
        # Where line 1 was lost, the name of the file says which session it is.
        inner = {**transcript.inner, "session_id": ended.session_id}
        return transcript.head(now=updated, inner=inner)

    if not renew_head(layout, ended.stem, ended.session_id, head_of):
        raise StoreError(f"{ended.path.name} is gone", hint="run verify again")


def _replace(archived: Archived, transcript: Transcript, head: bytes) -> None:
    path: Path = archived.path
    try:
        # Its bytes have a second name before the file is replaced: a crash in between loses none of them.
        if transcript.needs_copy:
            keep_beside(path)
        with archive_file(path) as fd:
            write_all(fd, head)
            write_lines(fd, transcript.messages)
    except OSError as error:
        raise StoreError(f"{path.name} could not be renewed: {error.strerror}") from error


def _forget_answers(state: StoreState, key: str, session_id: str) -> None:
    """Take what a session answered out of the journal of its key.

    Its messages stay known, as cleared ones. For two days the journal knows them by that, and no later write
    takes them out of a small one.
    """
    changes = []
    for number, raw in state.read_now("SELECT n, entry FROM journal WHERE key = ?", (encoded(key),)):
        entry = decode(raw)
        if entry.get("do") == "ended" and entry.get("session") == session_id and _without_answers(entry):
            values = (dump(entry), encoded(key), number)
            changes.append(Change("UPDATE journal SET entry = ? WHERE key = ? AND n = ?", values))
    if changes:
        state.write_now(changes)


def _without_answers(entry: dict[str, Any]) -> bool:
    changed = False
    ids = entry.get("ids")
    for id_, end in (ids if isinstance(ids, dict) else {}).items():
        # What has a kind is a reply or notice of the gateway's own, which was in no conversation.
        if isinstance(end, dict) and "kind" not in end:
            entry["ids"][id_] = {"final": end.get("final") is True, "kind": "cleared"}
            changed = True
    return changed


def delete(
    state: StoreState,
    layout: Layout,
    key: str,
    stem: str,
    session_id: str,
    *,
    unless: Callable[[], bool] = lambda: False,
) -> bool:
    """Remove an ended session for good, with what was kept of it when it was repaired.

    ``unless`` is asked under the lock, when nothing can change any more.

    Returns:
        Whether it was removed.

    Raises:
        StoreError: the disk refused.
    """
    with locked(layout.lock(stem)):
        gone = False
        if unless():
            return False
        forget(layout, stem)
        try:
            meant = [found for found in archive.of_stem(layout, stem) if found.session_id == session_id]
            if meant:
                # Before its files: a crash in between leaves a session that is deleted by the next try.
                _forget_answers(state, key, session_id)
            for found in meant:
                remove_archive(found.path)
                gone = True
            for pattern in (f"*-{session_id}.jsonl.corrupt-*", ".*.tmp") if gone else ():
                for path in layout.archive(stem).glob(pattern):
                    remove_archive(path)
        except OSError as error:
            raise StoreError(f"a closed session could not be deleted: {error.strerror}") from error
        # A search that ran meanwhile may have kept a vector of what it still found.
        forget(layout, stem)
        forget_index(layout, stem)
        return gone
