"""Ends a session: archived and begun anew, or deleted; a crash may follow every step. Runs in threads."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ulid import ULID

from session import archive
from session.disk import new_file, private_folder, sync_folder, write_all, write_lines
from session.fence import Held, Wait
from session.history import is_record
from session.index_file import remove_index
from session.journal import ANY, KEPT, Entry, Ledger, Place
from session.logbook import Logbook
from session.original import originals_of
from session.scribe import Line, Scribe, again, merged
from session.transcript import Transcript, decode, encode, fresh, read_time
from session.vectors import forget

LEFT_BEHIND = (
    "name",
    "instructions",
    "summary",
    "ended_at",
    "ended_by",
    "last_words",
    "history_from",
    "reopened",
    "resumed_at",
    "parted_from",
    "parted_by",
    "imported",
)  # what belongs to the ended session alone


def place_of(transcript: Transcript) -> Place:
    """Say where a session stands, for the journal's count."""
    return Place(transcript.session_id, len(transcript.index.finals))


def end(
    scribe: Scribe,
    book: Logbook,
    epoch: int,
    wait: Wait | None,
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
        Busy, Fenced, StoreError.
    """

    def once() -> Path | None:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            stop = ended_before(scribe.transcript, book.ledger, scribe.clock())
            if fd is None or not stop:
                return None
            earlier = ended(scribe.transcript) if stop == len(scribe.transcript.messages) else None
            return _end(scribe, book, held, (fd, book_fd), metadata, stop, ended_at=earlier)

    return again(once)


class Parted:
    """The lines of a session from ``first_kept`` on, as they stand in the next one behind ``behind`` lines.

    Our own records count anew. A summary among them speaks of what stays behind and does so too, at the
    archive's end; a withdrawal that reaches over the cut stands on both sides of it. ``offset`` is the next
    one's ``last_consolidated``.
    """

    def __init__(self, old: Transcript, first_kept: int, *, behind: int = 0) -> None:
        self.moved: list[Line] = []
        self.left_behind: list[bytes] = []
        places: list[int] = []  # where each line stands in the next session, or the one that follows it there
        for at, raw in enumerate(old.messages[first_kept:], first_kept):
            line, written = decode(raw), raw
            places.append(len(self.moved) + behind)
            if is_record(line) and line["kind"] in ("overlay", "compact"):
                self.left_behind.append(raw)
                continue
            since = line.get("from")
            if is_record(line) and line["kind"] == "undo" and type(since) is int and 0 <= since <= at:
                if since < first_kept:
                    self.left_behind.append(raw)
                line = {**line, "from": places[max(since - first_kept, 0)]}
                written = encode(line)
            self.moved.append((written, line))
        known = old.last_consolidated - first_kept
        self.offset = [*places, len(self.moved) + behind][known] if known > 0 else 0


def ended_before(transcript: Transcript, ledger: Ledger, now: datetime) -> int:
    """Return where a turn begins that has not ended, which is the number of messages where none runs."""
    count = len(transcript.messages)
    last = count - 1
    for record in reversed(transcript.index.records):
        if record != last:
            break
        last -= 1  # our own records come at any moment of a turn
    id_ = decode(transcript.messages[last]).get("message_id") if last >= 0 else None
    found = transcript.index.find(id_) if isinstance(id_, str) else None
    if found is None or id_ is None or found.final is not None or ledger.known(id_, now) is not None:
        return count
    return found.start


def _end(
    scribe: Scribe,
    book: Logbook,
    held: Held,
    fds: tuple[int, int | None],
    metadata: Mapping[str, Any] | None,
    stop: int,
    *,
    ended_at: datetime | None,
) -> Path:
    now, transcript = scribe.clock(), scribe.transcript
    parted = Parted(transcript, stop)
    path = write_archive(scribe, held, fds[0], metadata, ended_at or now, stop, more=parted.left_behind)
    inner = {name: value for name, value in transcript.inner.items() if name not in LEFT_BEHIND}
    inner |= {"session_id": str(ULID.from_datetime(now)), "previous_session": transcript.session_id}
    entry = ended_entry(transcript, book.ledger, path, now, stop=stop, following=str(inner["session_id"]))
    book.write(held, fds[1], entry)
    scribe.begin_anew(held, fresh(scribe.stem, scribe.key, now=now, inner=inner), more=parted.moved)
    return path


def ended_entry(
    transcript: Transcript, ledger: Ledger, path: Path, now: datetime, *, stop: int, following: str
) -> Entry:
    """Build what the journal keeps of a session that ends: its recent ids, and the count for the next one."""
    return {
        "at": now.astimezone(UTC).isoformat(),
        "do": "ended",
        "session": transcript.session_id,
        "next": following,
        "archive": path.name,
        "seq": ledger.seq(place_of(transcript)),
        "ids": recent_ids(transcript, ledger, now, stop=stop),
    }


def write_archive(
    scribe: Scribe,
    held: Held,
    fd: int,
    metadata: Mapping[str, Any] | None,
    now: datetime,
    stop: int,
    *,
    more: Sequence[bytes] = (),
) -> Path:
    """Put the first ``stop`` messages, then ``more``, into the archive; the transcript stays as it is."""
    transcript = scribe.transcript
    if transcript.needs_copy:
        scribe.keep_original(held, fd)
    folder = scribe.layout.archive(scribe.stem)
    private_folder(folder)
    ended = now.astimezone(UTC).isoformat(timespec="microseconds")
    own = {"session_id": transcript.session_id, "ended_at": ended, "reopened": None}
    since = {"history_from": min(transcript.history_start, stop)}
    inner = merged(transcript.inner, {**(metadata or {}), **own, **since})
    path = folder / archive.name_of(now, transcript.session_id)
    older = [found.path for found in archive.of_stem(scribe.layout, scribe.stem)]
    temp = held.temp(folder)
    with new_file(temp) as target:
        offset = min(transcript.last_consolidated, stop)
        write_all(target, transcript.head(now=now, inner=inner, offset=offset))
        if stop < len(transcript.messages):
            write_lines(target, islice(transcript.messages, stop))
        else:
            scribe.write_body(target, fd)
        write_all(target, b"".join(raw + b"\n" for raw in more))
        os.fsync(target)
        held.check()
        temp.rename(path)
    for stale in older:
        if stale != path and stale.name.endswith(f"-{transcript.session_id}.jsonl"):
            remove(held, stale)  # left by an ending that a crash cut short
    sync_folder(folder)
    return path


def recent_ids(
    transcript: Transcript, ledger: Ledger, now: datetime, *, stop: int | None = None
) -> dict[str, dict[str, Any]]:
    """Collect the ids of the last 48 h before ``stop`` with their replies, as the journal keeps them."""
    place = place_of(transcript)
    numbers = {at: ledger.seq_of_final(place, number) for number, at in enumerate(transcript.index.finals, 1)}
    ids: dict[str, dict[str, Any]] = {}

    def is_recent(line: Mapping[str, Any]) -> bool:
        at = read_time(line.get("timestamp"))
        return at is None or now - at <= KEPT

    for id_, found in transcript.index.ends(is_recent).items():
        if stop is not None and found.start >= stop:
            continue
        end: dict[str, Any] = {"final": found.final is not None}
        if found.final is not None:
            line = decode(transcript.messages[found.final])
            end["text"] = line.get("content") if isinstance(line.get("content"), str) else ""
            before = ledger.known(id_, now)  # it was said before this session began or was opened again
            seq = numbers.get(found.final) or (before and before.seq)
            if line.get("message_id") == id_ and seq is not None:
                end["seq"] = seq
            if line.get("stopped") is True:
                end["stopped"] = True
        ids[id_] = end
    return ids


@dataclass(frozen=True, slots=True)
class Clearing:
    """What is to be cleared: the arguments of ``Store.clear``."""

    ids: Sequence[str]
    of: str | None
    everything: bool


def clear(scribe: Scribe, book: Logbook, what: Clearing, *, wait: Wait) -> bool:
    """Delete the active transcript: recent ids and given ones are journalled as cleared, the epoch is raised.

    Raises:
        Moved, NewerFormat, StoreError.
    """
    epoch = scribe.claim(wait, anew=True)

    def once() -> bool:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            if what.of is not None and scribe.transcript.session_id != what.of:
                return False
            forget(scribe.layout, scribe.stem)  # no turn of an older epoch keeps any from here on
            if what.everything:
                _remove_the_rest(scribe, book)
            now = scribe.clock()
            cleared = dict.fromkeys([*recent_ids(scribe.transcript, book.ledger, now), *what.ids])
            at = now.astimezone(UTC).isoformat()
            seq = book.ledger.seq(place_of(scribe.transcript))
            entries: list[Entry] = [{"at": at, "do": "end", "id": id_, "kind": "cleared"} for id_ in cleared]
            if fd is not None:
                entries.append({"at": at, "do": "base", "session": ANY, "seq": seq, "finals": 0})
            if entries:
                book.write(held, None if what.everything else book_fd, *entries)
            if fd is None:
                return False
            for copy in originals_of(scribe.path):
                remove(held, copy)
            remove_transcript(held, scribe)
            return True

    return again(once)


def _remove_the_rest(scribe: Scribe, book: Logbook) -> None:
    """Delete ended sessions, memory and journal of a chat; who renews one of them waits for our lock."""
    layout, chat = scribe.layout, Path("memory") / "chats" / scribe.stem
    for folder in (layout.archive(scribe.stem), layout.workspace / chat):
        shutil.rmtree(folder, ignore_errors=True)
    (layout.workspace / "state" / f"{chat}.json").unlink(missing_ok=True)
    book.discard()


def remove_transcript(held: Held, scribe: Scribe) -> None:
    """Delete the active transcript, and what is derived of it."""
    remove(held, scribe.path)
    remove_index(scribe.layout.index(scribe.stem))
    scribe.forget()


def remove(held: Held, path: Path) -> None:
    """Delete a file so that a writer that was overtaken in this very moment deletes nothing.

    It is moved into a folder of this epoch first: whoever overtakes a writer takes that folder away.
    """
    held.check()
    bin_ = held.temp(path.parent)
    shutil.rmtree(bin_, ignore_errors=True)
    bin_.mkdir(mode=0o700)
    held.check()
    with contextlib.suppress(FileNotFoundError):
        path.rename(bin_ / "gone")
    sync_folder(path.parent)
    shutil.rmtree(bin_, ignore_errors=True)
    held.check()
