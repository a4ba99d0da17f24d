"""Ends a session that has become too long and opens another, which goes on from a summary. Runs in threads.

Lines are parted, never copied: what the summary stands for is the archive, what is kept follows the summary
in the new session. A crash may follow every step, as with every ending: the archive is whole first, then the
journal knows, then one rename puts the new session in the transcript's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from ulid import ULID

from session import archive
from session.ending import Parted, ended_before, ended_entry, write_archive
from session.fence import Wait
from session.logbook import Logbook
from session.scribe import Scribe, again
from session.transcript import Transcript, encode, fresh

_OF_THE_ENDED = (
    "summary",
    "last_words",
    "ended_at",
    "history_from",
    "reopened",
    "resumed_at",
    "parted_from",
    "parted_by",
    "imported",
)


def roll_over(
    scribe: Scribe,
    book: Logbook,
    epoch: int,
    wait: Wait | None,
    *,
    first_kept: int,
    record: Callable[[str], Mapping[str, Any]],
    still: Callable[[Transcript], bool],
) -> str | None:
    """Archive the messages before ``first_kept`` and begin a session with the summary and all others.

    The new session goes on under the name, model and instructions of the old, and with its count of replies.

    Args:
        scribe: writes the transcript.
        book: writes the journal.
        epoch: the owner's.
        wait: of this job.
        first_kept: index of the first message that moves over.
        record: makes the line that stands for the archived ones, given the archive's file name.
        still: says under the lock whether the transcript is still one that the summary fits.

    Returns:
        The ULID of the session that ended; None where ``still`` said no, and nothing was written.

    Raises:
        Busy, Fenced, StoreError.
    """

    def once() -> str | None:
        with book.open() as book_fd, scribe.writing(epoch, wait) as (held, fd):
            book.compare(book_fd)
            now, old, ledger = scribe.clock(), scribe.transcript, book.ledger
            if fd is None or not still(old):
                return None
            parted = Parted(old, first_kept, behind=1)
            path = write_archive(
                scribe, held, fd, {"ended_by": archive.COMPACTION}, now, first_kept, more=parted.left_behind
            )
            line = record(path.name)
            moved = [(encode(line), line), *parted.moved]
            new = _begun(scribe, old, now, offset=parted.offset)
            stop = ended_before(old, ledger, now)
            entry = ended_entry(old, ledger, path, now, stop=stop, following=new.session_id)
            finals = sum(1 for at in old.index.finals if at >= first_kept)
            base = {"do": "base", "session": new.session_id, "seq": entry["seq"], "finals": finals}
            book.write(held, book_fd, entry, {"at": now.astimezone(UTC).isoformat(), **base})
            scribe.begin_anew(held, new, more=moved)
            return old.session_id

    return again(once)


def _begun(scribe: Scribe, old: Transcript, now: datetime, *, offset: int) -> Transcript:
    """Begin the session that follows; all of it is sent, also what memory holds already."""
    inner = {name: value for name, value in old.inner.items() if name not in _OF_THE_ENDED}
    inner |= {"session_id": str(ULID.from_datetime(now)), "previous_session": old.session_id}
    if offset:
        inner["reopened"] = {"history_from": 0, "consolidated": offset}
    new = fresh(scribe.stem, scribe.key, now=now, inner=inner)
    new.metadata["last_consolidated"] = offset
    return new
