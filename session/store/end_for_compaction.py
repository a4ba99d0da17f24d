"""Ends a session that has become too long and opens another, which goes on from a summary. Runs in threads.

The archive is the whole session but for the turn that runs, whose lines move over. What is kept follows the
summary in the new session, too: copies, which the ``compact`` line counts (``kept``), and which memory takes
from the archive alone. A crash may follow every step, as with every ending: the archive is whole first, then
the journal knows, then one rename puts the new session in the transcript's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import durable
from session.store.change import SessionChange, changing
from session.store.journal_rows import JournalRows
from session.store.line1_fields import for_the_compacted
from session.store.split import Parted, ended_before
from session.store.writer import TranscriptWriter, again
from session.transcript import archive
from session.transcript.transcript import Transcript, encode, fresh


def roll_over(
    writer: TranscriptWriter,
    journal_rows: JournalRows,
    *,
    first_kept: int,
    record: Callable[[str, int], Mapping[str, Any]],
    still: Callable[[Transcript], bool],
) -> str | None:
    """Archive the session and begin another with the summary, then the messages from ``first_kept`` on.

    The new session goes on under the name, model and instructions of the old, and with its count of replies.

    Args:
        writer: writes the transcript.
        journal_rows: writes the journal.
        first_kept: index of the first message that follows the summary.
        record: makes the line that stands for those before, given the archive's file name and how many lines
            behind it are copies of what the archive holds.
        still: says under the lock whether the transcript is still one that the summary fits.

    Returns:
        The ULID of the session that ended; None where ``still`` said no, and nothing was written.

    Raises:
        Fenced, StoreError.
    """

    def once() -> str | None:
        with changing(writer, journal_rows) as change:
            old = change.transcript
            if change.fd is None or not still(old):
                return None
            stop = max(ended_before(old, change.journal_state, change.now), first_kept)
            kept = Parted(old, first_kept, behind=1)
            records = Parted(old, stop).left_behind
            path = change.archive(stop, metadata={"ended_by": archive.COMPACTION}, more=records)
            line = record(path.name, kept.before(stop))
            known = kept.before(max(stop, old.last_consolidated))
            new = _begun(change, offset=1 + known if known else 0)
            finals = sum(1 for at in old.index.finals if at >= first_kept)
            ended = change.ended(path, stop=stop, following=new.session_id)
            change.journal(ended, change.base(new.session_id, finals=finals))
            change.begin_anew(new, more=[(encode(line), line), *kept.moved])
            return old.session_id

    return again(once)


def _begun(change: SessionChange, *, offset: int) -> Transcript:
    """Begin the session that follows; all of it is sent, also what memory has from the archive."""
    old, now = change.transcript, change.now
    inner = for_the_compacted(old.inner)
    inner |= {"session_id": durable.new_id(now), "previous_session": old.session_id}
    if offset:
        inner["reopened"] = {"history_from": 0, "consolidated": offset}
    new = fresh(old.stem, change.writer.key, now=now, inner=inner)
    new.metadata["last_consolidated"] = offset
    return new
