"""Boundaries besides ``/new``: drawn by silence or by hand, and taken back by ``reopen``. Runs in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import durable
from session.errors import NoSession
from session.store.change import SessionChange, changing, remove_archive
from session.store.ending import end
from session.store.idle import last_words
from session.store.journal_rows import JournalRows
from session.store.line1_fields import for_the_next, for_the_reopened
from session.store.split import Parted, ended_before
from session.store.writer import Line, TranscriptWriter, again, merged
from session.transcript import archive
from session.transcript.agent import AGENT, agent_in
from session.transcript.history import is_record
from session.transcript.journal import Entry
from session.transcript.loading import load
from session.transcript.transcript import Transcript, decode, dump, fresh

# Messages of a session that are moved behind those of another.
JOINED_MAX = 2_000
# What in a record of ours counts the messages of its session.
_PLACES = ("from", "first_kept")


@dataclass(frozen=True, slots=True)
class Swap:
    """What opening a session again did: ``left`` is the ULID of the one that ended for it, empty for none."""

    session: str
    left: str


def close(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
    *,
    of: str | None,
    ended: Callable[[Transcript], datetime | None] = lambda _: None,
) -> str | None:
    """End the session without beginning another; return its ULID, None where nothing was archived.

    Where a turn runs, a fresh session begins with its lines, in which it goes on. A session without a
    message leaves no archive.

    Where ``of`` names a ULID that the active session has not, nothing happens. ``ended``, asked under the
    lock, says when it ended; None is now.

    Raises:
        Fenced, StoreError.
    """

    def once() -> tuple[str | None, bool]:
        with changing(writer, journal_rows) as change:
            transcript = change.transcript
            if change.fd is None or of not in (None, transcript.session_id):
                return None, False
            stop = ended_before(transcript, change.journal_state, change.now)
            if stop < len(transcript.messages):
                return transcript.session_id, True
            if stop:
                path = change.archive(stop, ended_at=ended(transcript))
                change.journal(change.ended(path, stop=stop, following=""))
            change.remove()
            return (transcript.session_id if stop else None), False

    closed, runs = again(once)
    if runs:
        return closed if end(writer, journal_rows, metadata=None) is not None else None
    return closed


def split_after_idle(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
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
        Fenced, StoreError.
    """

    def once() -> bool:
        with changing(writer, journal_rows) as change:
            old, now = change.transcript, change.now
            stop = len(old.messages)
            runs = ended_before(old, change.journal_state, now) < stop
            if change.fd is None or not stop or runs or not due(old):
                return False
            path = change.archive(stop, metadata={"last_words": last_words(old) or None})
            new = durable.new_id(now)
            change.journal(change.ended(path, stop=stop, following=new))
            inner = for_the_next(old.inner) | {"session_id": new, "previous_session": old.session_id}
            inner |= {"parted_from": path.name, "parted_by": by}
            change.begin_anew(fresh(writer.stem, writer.key, now=now, inner=inner))
            return True

    return again(once)


def turn_to(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
    *,
    agent: str,
    by: str,
) -> bool:
    """End the session of another agent for the message ``by``, and begin one of ``agent`` (empty: default).

    All lines stay in the archive: none of them goes over into the session of another agent. The new one knows
    by which message it came to be.

    Returns:
        Whether a session ended; False where it is ``agent``'s already, or had no message.

    Raises:
        Fenced, StoreError.
    """

    def once() -> bool:
        with changing(writer, journal_rows) as change:
            old, now = change.transcript, change.now
            if agent_in(old.inner) == agent or change.fd is None or not old.messages:
                return False
            path = change.archive(len(old.messages))
            new = durable.new_id(now)
            change.journal(change.ended(path, stop=len(old.messages), following=new))
            inner = for_the_next(old.inner) | {"session_id": new, "previous_session": old.session_id}
            inner = merged(inner, {AGENT: agent or None, "turned_by": by})
            change.begin_anew(fresh(writer.stem, writer.key, now=now, inner=inner))
            return True

    return again(once)


def reopen(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
    *,
    session_id: str,
    by: str = "",
) -> Swap:
    """Let an ended session be the active one again; the one that was active is archived.

    It keeps its ULID, and its history begins where it began when it ended, whatever went into memory since.
    Done again it ends in the same. The lines of a turn that runs come behind those of the session. ``by`` is
    the id of the command that asks for it; the journal knows its aim before anything moves.

    Where the active one began for silence, right behind the session that is asked for, there was no boundary:
    all its lines come behind those of the session, and it is no more.

    Raises:
        NoSession: this key has no such session, or its file cannot be read.
        Fenced, StoreError.
    """

    def once() -> Swap:
        with changing(writer, journal_rows) as change:
            if change.fd is not None and change.transcript.session_id == session_id:
                return _done_before(change, session_id, by)
            return _reopen(change, session_id, by)

    return again(once)


def _reopen(change: SessionChange, session_id: str, by: str) -> Swap:
    path, back = _ended(change.writer, session_id)
    if change.fd is None:
        # ``begin_anew`` takes the place of a file: one is there before the journal speaks of it.
        change.renew()
    old, now = change.transcript, change.now
    stop = ended_before(old, change.journal_state, now)
    joined = change.fd is not None and _goes_on_from(old, path)
    left = old.session_id if stop and not joined else ""
    if joined:
        change.keep_original()
    entries = [_aim(change, by, session_id, left)] if by else []
    if stop and change.fd is not None:
        kept = path if joined else change.archive(stop, more=Parted(old, stop).left_behind)
        entries.append(change.ended(kept, stop=stop, following=session_id))
    finals = len(back.index.finals) + (len(old.index.finals) if joined else 0)
    change.journal(*entries, change.base(session_id, finals=finals))
    behind = _moved(old, len(back.messages)) if joined else _running(old, stop)
    change.begin_anew(_head(back, now), body=back.messages, more=behind)
    _take_away(path, back)
    return Swap(session_id, left)


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


def _ended(writer: TranscriptWriter, session_id: str) -> tuple[Path, Transcript]:
    found = archive.find(writer.layout, session_id, stem=writer.stem)
    read = load(found.path, writer.stem) if found is not None else None
    if found is not None and read is not None:
        transcript = read[0]
        if transcript.key == writer.key and transcript.session_id == session_id:
            return found.path, transcript
    raise NoSession(f"{writer.key} has no closed session {session_id}", hint="chat-gateway sessions list")


def _done_before(change: SessionChange, session_id: str, by: str) -> Swap:
    """Finish what a crash interrupted behind the rename: the file in the archive is a copy by now."""
    writer = change.writer
    for found in archive.of_stem(writer.layout, writer.stem):
        if found.session_id == session_id:
            read = load(found.path, writer.stem)
            _take_away(found.path, read[0] if read is not None else Transcript(writer.stem))
    aim = change.journal_state.reopening(by)
    return Swap(session_id, aim.left if aim is not None and aim.session == session_id else "")


def _aim(change: SessionChange, by: str, session_id: str, left: str) -> Entry:
    return {**change.entry("reopen"), "id": by, "session": session_id, "left": left}


def _head(back: Transcript, now: datetime) -> Transcript:
    """Begin a transcript with the line 1 of an ended session, as that of an active one."""
    inner: Mapping[str, Any] = back.inner
    offset = back.last_consolidated
    since = inner.get("history_from")
    if type(since) is not int or not 0 <= since <= offset:
        since = 0 if offset == len(back.messages) else offset
    opened = {"history_from": since, "consolidated": offset} if since < offset else None
    resumed = now.astimezone(UTC).isoformat(timespec="microseconds")
    inner = merged(
        for_the_reopened(inner), {"session_id": back.session_id, "reopened": opened, "resumed_at": resumed}
    )
    head = Transcript(back.stem, metadata=decode(back.head(now=now, inner=inner)))
    head.damage.heads = 1
    return head


def _take_away(path: Path, content: Transcript) -> None:
    """Remove the file of a session that is active again; one that holds more than its lines is kept aside."""
    if content.needs_copy:
        os.link(path, path.with_name(f"{path.name}.corrupt-{durable.new_id()}"))
    remove_archive(path)
