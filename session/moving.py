"""Moves a conversation to another key: lines, ended sessions, memory, files; a crash may follow every step.

What the new key has already comes behind. The merged file carries the session's ULID before the old file
goes: by it a second try knows that the lines are there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from session import archive
from session.disk import Layout, new_file, private_folder, read_file, sync_folder, write_all, write_lines
from session.ending import place_of, recent_ids, remove_transcript
from session.errors import StoreError
from session.fence import Held, Wait
from session.hop import start_thread
from session.journal import ANY, Entry
from session.key import SessionKey
from session.line import naive
from session.logbook import Logbook
from session.scribe import Changed, Scribe, again, merged
from session.state import replace_file
from session.store import Hands, Store
from session.transcript import Transcript, decode, dump
from session.vectors import forget

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


def _move_lines(first: Hands, second: Hands, wait: Wait) -> tuple[str, str]:
    (old, book), (new, new_book) = first, second
    old_epoch = old.claim(wait)
    book.refresh()
    new_epoch = new.claim(wait, anew=old.exists)
    new_book.refresh()

    def once() -> None:
        with book.open() as book_fd, old.writing(old_epoch, wait) as (held, fd):
            book.compare(book_fd)
            if fd is None:
                forget(old.layout, old.stem)
                return
            with new.writing(new_epoch, wait) as (new_held, new_fd):
                if not _is_merged(old, new):
                    if old.transcript.needs_copy:
                        old.keep_original(held, fd)
                    _merge(old.transcript, new, new_held, new_fd)
            book.write(held, book_fd, _ended(old, book))
            remove_transcript(held, old)
            forget(old.layout, old.stem)

    again(once)
    old.refresh()
    return old.stem, new.stem


def _is_merged(old: Scribe, new: Scribe) -> bool:
    session_id = old.transcript.session_id
    if new.exists and new.transcript.session_id == session_id:
        return True
    return archive.find(new.layout, session_id, stem=new.stem) is not None


def _merge(old: Transcript, new: Scribe, held: Held, fd: int | None) -> None:
    """Put a file with the old lines and then the new ones in the place of the new key's."""
    own = new.transcript
    if fd is not None and own.needs_copy:
        new.keep_original(held, fd)
    metadata = {**own.metadata, **old.metadata, "key": new.key}
    if old.created_at is not None:
        metadata["created_at"] = naive(old.created_at)
    inner = merged(own.inner, {**old.inner, "session_id": old.session_id})
    offset = old.last_consolidated
    if offset == len(old.messages):
        offset += own.last_consolidated
    records = set(own.index.records)
    more = [_shifted(raw, len(old.messages)) if at in records else raw for at, raw in enumerate(own.messages)]
    private_folder(new.path.parent)
    temp = held.temp(new.path.parent)
    with new_file(temp) as target:
        write_all(
            target, Transcript(new.stem, metadata=metadata).head(now=new.clock(), inner=inner, offset=offset)
        )
        write_lines(target, old.messages)
        write_lines(target, more)
        os.fsync(target)
        held.check()
        if fd is None:
            try:
                os.link(temp, new.path)
            except FileExistsError:
                new.forget()
                raise Changed from None
        else:
            temp.rename(new.path)
    sync_folder(new.path.parent)
    temp.unlink(missing_ok=True)
    held.check()
    new.forget()
    new.refresh()


def _shifted(raw: bytes, by: int) -> bytes:
    """Let one of our own records point at the same lines behind ``by`` others."""
    line = decode(raw)
    for name in ("first_kept", "from"):
        if type(line.get(name)) is int:
            line[name] += by
    return dump(line)


def _ended(old: Scribe, book: Logbook) -> Entry:
    """Say in the old key's journal how its messages ended, since they may come again under it."""
    now, transcript = old.clock(), old.transcript
    return {
        "at": now.astimezone(UTC).isoformat(),
        "do": "ended",
        "session": transcript.session_id,
        "next": ANY,
        "archive": "",
        "seq": book.ledger.seq(place_of(transcript)),
        "ids": recent_ids(transcript, book.ledger, now),
    }


# -- what lies beside the transcript -----------------------------------------------------------------


def _move_folders(layout: Layout, old_stem: str, new_stem: str, new_key: str) -> None:
    try:
        _move_archives(layout, old_stem, new_stem, new_key)
        for name in ("memory", "files"):
            chats = layout.workspace / name / "chats"
            _move_tree(chats / old_stem, chats / new_stem, join=name == "memory")
    except OSError as error:
        raise StoreError(
            f"a conversation could not be moved: {error.strerror}", hint="look at the disk; it is tried again"
        ) from error


def _move_archives(layout: Layout, old_stem: str, new_stem: str, new_key: str) -> None:
    source, folder = layout.archive(old_stem), layout.archive(new_stem)
    for found in archive.of_stem(layout, old_stem):
        data = read_file(found.path)
        if data is None:
            continue
        private_folder(folder)
        temp = folder / f".{found.path.name}.moving"
        with new_file(temp) as target:
            write_all(target, _rekeyed(data[0], new_key))
            os.fsync(target)
            temp.rename(folder / found.path.name)
        sync_folder(folder)
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
    private_folder(target.parent)
    if not os.path.lexists(target):
        source.rename(target)
        sync_folder(target.parent)
        return
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if not os.path.lexists(place):
            entry.rename(place)
        elif entry.is_dir() and not entry.is_symlink() and place.is_dir():
            _move_tree(entry, place, join=join)
        elif join and entry.name in _JOINED and entry.is_file() and place.is_file():
            _join(entry, place)
        else:
            entry.rename(_free_name(place))
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
