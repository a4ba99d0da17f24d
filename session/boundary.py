"""Boundaries drawn by hand: a session is closed, an older one opened again. Runs in threads.

A crash may follow every step: the archive of the session that ends is whole first, then the journal knows
its ids and what is about to happen, then one rename (or removal) is the change itself. What a crash leaves
is a copy of the active session in the archive, which every reader passes over and the next ending takes away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ulid import ULID

from session import archive
from session.disk import sync_folder
from session.ending import (
    Parted,
    end,
    ended_before,
    ended_entry,
    place_of,
    remove,
    remove_transcript,
    write_archive,
)
from session.errors import NoSession
from session.fence import Held, Wait
from session.history import is_record
from session.journal import Entry
from session.loading import load
from session.logbook import Logbook
from session.scribe import Scribe, again, merged
from session.transcript import Transcript, decode

_OF_THE_END = ("ended_at", "ended_by", "summary", "history_from", "reopened")


@dataclass(frozen=True, slots=True)
class Swap:
    """What opening a session again did: ``left`` is the ULID of the one that ended for it, empty for none."""

    session: str
    left: str


def close(scribe: Scribe, book: Logbook, epoch: int, wait: Wait | None, *, of: str | None) -> str | None:
    """End the session without beginning another; return its ULID, None where nothing was archived.

    Where a turn runs, a fresh session begins with its lines, in which it goes on. A session without a
    message leaves no archive.

    Where ``of`` names a ULID that the active session has not, nothing happens.

    Raises:
        Busy, Fenced, StoreError.
    """

    def once() -> tuple[str | None, bool]:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            now, transcript = scribe.clock(), scribe.transcript
            if fd is None or of not in (None, transcript.session_id):
                return None, False
            stop = ended_before(transcript, book.ledger, now)
            if stop < len(transcript.messages):
                return transcript.session_id, True
            if stop:
                path = write_archive(scribe, held, fd, None, now, stop)
                book.write(
                    held, book_fd, ended_entry(transcript, book.ledger, path, now, stop=stop, following="")
                )
            remove_transcript(held, scribe)
            return (transcript.session_id if stop else None), False

    closed, runs = again(once)
    if runs:
        return closed if end(scribe, book, epoch, wait, metadata=None) is not None else None
    return closed


def reopen(
    scribe: Scribe, book: Logbook, epoch: int, wait: Wait | None, *, session_id: str, by: str = ""
) -> Swap:
    """Let an ended session be the active one again; the one that was active is archived.

    It keeps its ULID, and its history begins where it began when it ended, whatever went into memory since.
    Done again it ends in the same. The lines of a turn that runs come behind those of the session. ``by`` is
    the id of the command that asks for it; the journal knows its aim before anything moves.

    Raises:
        NoSession: this key has no such session, or its file cannot be read.
        Busy, Fenced, StoreError.
    """

    def once() -> Swap:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            if fd is not None and scribe.transcript.session_id == session_id:
                return _done_before(scribe, book, held, session_id, by)
            path, back = _ended(scribe, session_id)
            if fd is None:
                scribe.renew(held, None)
            now, old = scribe.clock(), scribe.transcript
            stop = ended_before(old, book.ledger, now)
            left = old.session_id if stop else ""
            entries = [_aim(now, by, session_id, left)] if by else []
            seq = book.ledger.seq(place_of(old))
            if stop and fd is not None:
                kept = write_archive(scribe, held, fd, None, now, stop, more=Parted(old, stop).left_behind)
                entries.append(
                    ended_entry(old, book.ledger, kept, now, stop=stop, following=session_id),
                )
            base = {"do": "base", "session": session_id, "seq": seq, "finals": len(back.index.finals)}
            book.write(held, book_fd, *entries, {"at": _text(now), **base})
            running = [(raw, line) for raw in old.messages[stop:] if not is_record(line := decode(raw))]
            scribe.begin_anew(held, _head(back, now), body=back.messages, more=running)
            _take_away(held, path, back)
            return Swap(session_id, left)

    return again(once)


def _ended(scribe: Scribe, session_id: str) -> tuple[Path, Transcript]:
    found = archive.find(scribe.layout, session_id, stem=scribe.stem)
    read = load(found.path, scribe.stem) if found is not None else None
    if found is not None and read is not None:
        transcript = read[0]
        if transcript.key == scribe.key and transcript.session_id == session_id:
            return found.path, transcript
    raise NoSession(f"{scribe.key} has no ended session {session_id}", hint="chat-gateway sessions list")


def _done_before(scribe: Scribe, book: Logbook, held: Held, session_id: str, by: str) -> Swap:
    """Finish what a crash interrupted behind the rename: the file in the archive is a copy by now."""
    for found in archive.of_stem(scribe.layout, scribe.stem):
        if found.session_id == session_id:
            read = load(found.path, scribe.stem)
            _take_away(held, found.path, read[0] if read is not None else Transcript(scribe.stem))
    aim = book.ledger.reopening(by)
    return Swap(session_id, aim.left if aim is not None and aim.session == session_id else "")


def _aim(now: datetime, by: str, session_id: str, left: str) -> Entry:
    return {"at": _text(now), "do": "reopen", "id": by, "session": session_id, "left": left}


def _text(now: datetime) -> str:
    return now.astimezone(UTC).isoformat()


def _head(back: Transcript, now: datetime) -> Transcript:
    """Begin a transcript with the line 1 of an ended session, as that of an active one."""
    inner: Mapping[str, Any] = back.inner
    offset = back.last_consolidated
    since = inner.get("history_from")
    if type(since) is not int or not 0 <= since <= offset:
        since = 0 if offset == len(back.messages) else offset
    opened = {"history_from": since, "consolidated": offset} if since < offset else None
    inner = {name: value for name, value in inner.items() if name not in _OF_THE_END}
    inner = merged(inner, {"session_id": back.session_id, "reopened": opened})
    head = Transcript(back.stem, metadata=decode(back.head(now=now, inner=inner)))
    head.damage.heads = 1
    return head


def _take_away(held: Held, path: Path, content: Transcript) -> None:
    """Remove the file of a session that is active again; one that holds more than its lines is kept aside."""
    if content.needs_copy:
        held.check()
        path.rename(path.with_name(f"{path.name}.corrupt-{ULID()}"))
        sync_folder(path.parent)
    else:
        remove(held, path)
