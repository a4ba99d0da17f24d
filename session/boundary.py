"""Boundaries besides ``/new``: drawn by silence or by hand, and taken back by ``reopen``. Runs in threads.

A crash may follow every step: the archive of the session that ends is whole first, then the journal knows
its ids and what is about to happen, then one rename (or removal) is the change itself. What a crash leaves
is a copy of the active session in the archive, which every reader passes over and the next ending takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ulid import ULID

from session import archive
from session.disk import sync_folder
from session.ending import (
    LEFT_BEHIND,
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
from session.idle import last_words
from session.journal import Entry
from session.loading import load
from session.logbook import Logbook
from session.scribe import Line, Scribe, again, merged
from session.transcript import Transcript, decode, dump, fresh

_OF_THE_END = ("ended_at", "ended_by", "summary", "last_words", "history_from", "reopened")
JOINED_MAX = 2_000  # messages of a session that are moved behind those of another
_PLACES = ("from", "first_kept")  # what in a record of ours counts the messages of its session


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


def part(
    scribe: Scribe,
    book: Logbook,
    epoch: int,
    wait: Wait | None,
    *,
    by: str,
    due: Callable[[Transcript], bool],
) -> bool:
    """End the session for the message ``by``, before which nobody said anything, and begin a fresh one.

    The fresh one knows by which message it came to be, and which archive it goes on from, so that ``reopen``
    can put both together again. Where an exchange has not ended yet nothing happens, nor where ``due``, asked
    under the lock, says no.

    Returns:
        Whether a session ended.

    Raises:
        Busy, Fenced, StoreError.
    """

    def once() -> bool:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            now, old = scribe.clock(), scribe.transcript
            stop = len(old.messages)
            if fd is None or not stop or ended_before(old, book.ledger, now) < stop or not due(old):
                return False
            words = {"last_words": last_words(old) or None}
            path = write_archive(scribe, held, fd, words, now, stop)
            new = str(ULID.from_datetime(now))
            book.write(held, book_fd, ended_entry(old, book.ledger, path, now, stop=stop, following=new))
            inner = {name: value for name, value in old.inner.items() if name not in LEFT_BEHIND}
            inner |= {"session_id": new, "previous_session": old.session_id}
            inner |= {"parted_from": path.name, "parted_by": by}
            scribe.begin_anew(held, fresh(scribe.stem, scribe.key, now=now, inner=inner))
            return True

    return again(once)


def reopen(
    scribe: Scribe, book: Logbook, epoch: int, wait: Wait | None, *, session_id: str, by: str = ""
) -> Swap:
    """Let an ended session be the active one again; the one that was active is archived.

    It keeps its ULID, and its history begins where it began when it ended, whatever went into memory since.
    Done again it ends in the same. The lines of a turn that runs come behind those of the session. ``by`` is
    the id of the command that asks for it; the journal knows its aim before anything moves.

    Where the active one began for silence, right behind the session that is asked for, there was no boundary:
    all its lines come behind those of the session, and it is no more.

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
            joined = fd is not None and _goes_on_from(old, path)
            left = old.session_id if stop and not joined else ""
            entries = [_aim(now, by, session_id, left)] if by else []
            finals = len(back.index.finals) + (len(old.index.finals) if joined else 0)
            seq = book.ledger.seq(place_of(old))
            if fd is not None and old.needs_copy and joined:
                scribe.keep_original(held, fd)
            if stop and fd is not None:
                kept = path
                if not joined:
                    records = Parted(old, stop).left_behind
                    kept = write_archive(scribe, held, fd, None, now, stop, more=records)
                entries.append(
                    ended_entry(old, book.ledger, kept, now, stop=stop, following=session_id),
                )
            base = {"do": "base", "session": session_id, "seq": seq, "finals": finals}
            book.write(held, book_fd, *entries, {"at": _text(now), **base})
            behind = _moved(old, len(back.messages)) if joined else _running(old, stop)
            scribe.begin_anew(held, _head(back, now), body=back.messages, more=behind)
            _take_away(held, path, back)
            return Swap(session_id, left)

    return again(once)


def _goes_on_from(transcript: Transcript, path: Path) -> bool:
    """Say whether a session began for silence behind this very archive, and nothing of it was left behind."""
    if transcript.inner.get("parted_from") != path.name or len(transcript.messages) > JOINED_MAX:
        return False
    kinds = {decode(transcript.messages[at]).get("kind") for at in transcript.index.records}
    return transcript.last_consolidated == 0 and not kinds & {"overlay", "compact"}


def _moved(transcript: Transcript, count: int) -> list[Line]:
    """Return all lines of a session that ``count`` others come to stand before; records follow their aims."""
    lines: list[Line] = [(raw, decode(raw)) for raw in transcript.messages]
    for at in transcript.index.records:
        line = decode(transcript.messages[at])
        line |= {name: line[name] + count for name in _PLACES if type(line.get(name)) is int}
        lines[at] = (dump(line), line)
    return lines


def _running(transcript: Transcript, start: int) -> list[Line]:
    lines = [(raw, decode(raw)) for raw in transcript.messages[start:]]
    return [(raw, line) for raw, line in lines if not is_record(line)]


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
    resumed = now.astimezone(UTC).isoformat(timespec="microseconds")
    inner = merged(inner, {"session_id": back.session_id, "reopened": opened, "resumed_at": resumed})
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
