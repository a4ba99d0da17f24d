"""Moves a conversation to another key: lines, ended sessions, memory, files; a crash may follow every step.

What the new key has already comes behind. The merged file carries the session's ULID before the old file
goes: by it a second try knows that the lines are there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from durable import make_folder, replacing, sync_folder, write_all, write_lines
from session.disk.layout import Layout, read_file
from session.disk.local_files import local_path
from session.disk.state import read_state, replace_file, write_state
from session.disk.threads import start_thread
from session.errors import StoreError
from session.store import places
from session.store.derived import forget, forget_index
from session.store.rollover import SessionChange, changed, recent_ids
from session.store.store import Store
from session.store.writer import TranscriptWriter, merged
from session.transcript import archive
from session.transcript.agent import home_of, parted
from session.transcript.journal import ANY, Entry
from session.transcript.key import SessionKey
from session.transcript.line import naive
from session.transcript.transcript import Transcript, decode, dump

CHATS = "chats"
_JOINED = ("MEMORY.md", "HISTORY.md", "USER.md", "facts.jsonl")


async def move(store: Store, old: SessionKey, new: SessionKey) -> tuple[str, str]:
    """Let ``new`` go on where ``old`` was; a turn of ``new`` that runs begins again on the merged lines.

    Returns:
        The names of both keys' files.

    Raises:
        Fenced, NewerFormat, StoreError: call it again, what was done stays done.
    """
    old_stem, new_stem = await store.both(old, new, _move_lines)
    layout = store.layout
    await start_thread(lambda: _move_folders(layout, old_stem, new_stem, new), name="disk-move")
    return old_stem, new_stem


def _move_lines(old: TranscriptWriter, new: TranscriptWriter) -> tuple[str, str]:
    def job(change: SessionChange) -> None:
        if change.fd is not None:
            with new.reading() as new_fd:
                if not _is_merged(old, new):
                    old.keep_original(change.fd)
                    _merge(old.transcript, new, new_fd)
            # The lines are in their new place, durable, before the old ones go.
            change.journal(_ended(change))
            change.remove()
        forget(old.layout, old.stem)
        forget_index(old.layout, old.stem)

    changed(old, job)
    old.refresh()
    return old.stem, new.stem


def _is_merged(old: TranscriptWriter, new: TranscriptWriter) -> bool:
    session_id = old.transcript.session_id
    if new.exists and new.transcript.session_id == session_id:
        return True
    return archive.find(new.layout, session_id, stem=new.stem) is not None


def _merge(old: Transcript, new: TranscriptWriter, fd: int | None) -> None:
    """Put a file with the old lines and then the new ones in the place of the new key's."""
    own = new.transcript
    new.keep_original(fd)
    metadata = {**own.metadata, **old.metadata, "key": new.key}
    if old.created_at is not None:
        metadata["created_at"] = naive(old.created_at)
    inner = merged(own.inner, {**old.inner, "session_id": old.session_id})
    offset = old.last_consolidated
    if offset == len(old.messages):
        offset += own.last_consolidated
    records = set(own.index.records)
    more = [_shifted(raw, len(old.messages)) if at in records else raw for at, raw in enumerate(own.messages)]
    head = Transcript(new.stem, metadata=metadata).head(now=new.clock(), inner=inner, offset=offset)
    with new.replacing() as target:
        write_all(target, head)
        write_lines(target, old.messages)
        write_lines(target, more)
    new.forget()
    new.refresh()


def _shifted(raw: bytes, by: int) -> bytes:
    """Let one of our own records point at the same lines behind ``by`` others."""
    line = decode(raw)
    for name in ("first_kept", "from"):
        if type(line.get(name)) is int:
            line[name] += by
    return dump(line)


def _ended(change: SessionChange) -> Entry:
    """Say in the old key's journal how its messages ended, since they may come again under it."""
    return {
        **change.entry("ended"),
        "session": change.transcript.session_id,
        "next": ANY,
        "archive": "",
        "seq": change.seq,
        "ids": recent_ids(change.transcript, change.journal_state, change.now),
    }


# -- what lies beside the transcript -----------------------------------------------------------------


def _move_folders(layout: Layout, old_stem: str, new_stem: str, new_key: str) -> None:
    try:
        _move_archives(layout, old_stem, new_stem, new_key)
        for scope in places.with_agents(layout, [CHATS]):
            agent, own = parted(scope)
            for name in ("memory", "files"):
                chats = home_of(layout.workspace, agent) / name / own
                _move_tree(chats / old_stem, chats / new_stem, join=name == "memory")
            known = local_path(layout.workspace, "state/memory") / scope
            _move_state(known / f"{old_stem}.json", known / f"{new_stem}.json")
    except OSError as error:
        raise StoreError(
            f"a conversation could not be moved: {error.strerror}",
            hint="check the disk; it will be tried again",
        ) from error


def _move_state(source: Path, target: Path) -> None:
    """Take along what is known of how far the notes are; of both, where the new key has some already."""
    if not source.is_file():
        return
    make_folder(target.parent)
    older, newer = read_state(source), read_state(target)
    for name in ("looked_at", "failures"):
        newer[name] = _mapping(older.get(name)) | _mapping(newer.get(name))
    newer["seen"] = [*_list(older.get("seen")), *_list(newer.get("seen"))]
    write_state(target, {**older, **newer, "answer": newer.get("answer") or older.get("answer")})
    source.unlink()
    sync_folder(source.parent)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _move_archives(layout: Layout, old_stem: str, new_stem: str, new_key: str) -> None:
    source, folder = layout.archive(old_stem), layout.archive(new_stem)
    for found in archive.of_stem(layout, old_stem):
        data = read_file(found.path)
        if data is None:
            continue
        make_folder(folder)
        temp = folder / f".{found.path.name}.moving"
        with replacing(folder / found.path.name, temp=temp) as target:
            write_all(target, _rekeyed(data[0], new_key))
        found.path.unlink(missing_ok=True)
    _drop_empty(source)


def _rekeyed(data: bytes, key: str) -> bytes:
    """Name the key in line 1; a file whose line 1 is not the usual one stays as it is."""
    first, newline, rest = data.partition(b"\n")
    try:
        head: Any = decode(first)
    except (ValueError, RecursionError):
        return data
    if not isinstance(head, Mapping) or head.get("_type") != "metadata":
        return data
    return dump({**head, "key": key}) + newline + rest


def _move_tree(source: Path, target: Path, *, join: bool) -> None:
    """Move a folder, into the other one where that is there already; nothing is written over."""
    if source.is_symlink() or not source.is_dir():
        return
    make_folder(target.parent)
    if not os.path.lexists(target):
        source.rename(target)
        sync_folder(target.parent)
        return
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if not os.path.lexists(there):
            entry.rename(there)
        elif entry.is_dir() and not entry.is_symlink() and there.is_dir():
            _move_tree(entry, there, join=join)
        elif join and entry.name in _JOINED and entry.is_file() and there.is_file():
            _join(entry, there)
        else:
            entry.rename(_free_name(there))
    # What has moved is on disk under its new name before the old folder goes.
    sync_folder(target)
    _drop_empty(source)


def _join(entry: Path, place: Path) -> None:
    """Put the older notes before the newer ones."""
    older, newer = entry.read_bytes(), place.read_bytes()
    if older and not older.endswith(b"\n"):
        older += b"\n"
    if not newer.startswith(older):
        replace_file(place, older + newer)
    entry.unlink()


def _free_name(place: Path) -> Path:
    number = 1
    while os.path.lexists(found := place.with_name(f"{place.stem}~{number}{place.suffix}")):
        number += 1
    return found


def _drop_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
        sync_folder(folder.parent)
