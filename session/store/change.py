"""One change of session, under the lock of its key. Runs in threads.

Every change goes in one order, since a crash may follow each step. The archive is whole on disk first. Then
the journal knows the ids that ended, and what is about to happen. Then one rename, or one removal, is the
change itself. Until that step the transcript stands as it was, and the change is simply done again. What a
crash leaves in the archive is a copy of the active session, which the next ending takes away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from durable import Change, beside_file, make_folder, sync_folder, write_all, write_lines
from session.store.journal_rows import JournalRows
from session.store.key_lock import key_locked
from session.store.split import place_of, recent_ids
from session.store.writer import Line, TranscriptWriter, merged
from session.transcript import archive
from session.transcript.journal import Entry, JournalState
from session.transcript.transcript import Transcript


@dataclass(frozen=True, slots=True)
class SessionChange:
    """Transcript and journal of a key while it is locked, both known to be as we left them.

    ``fd`` is the open transcript, None where there is none. ``now`` is the one time of all that the change
    writes. What ``journal`` adds is committed with the next change of the transcript.
    """

    writer: TranscriptWriter
    journal_rows: JournalRows
    fd: int | None
    now: datetime
    pending: list[Change]

    @property
    def transcript(self) -> Transcript:
        """The session that is active, until ``begin_anew`` or ``remove``."""
        return self.writer.transcript

    @property
    def journal_state(self) -> JournalState:
        """What the journal says."""
        return self.journal_rows.state

    def archive(
        self,
        stop: int,
        *,
        metadata: Mapping[str, Any] | None = None,
        ended_at: datetime | None = None,
        more: Sequence[bytes] = (),
    ) -> Path:
        """Put the first ``stop`` messages, then ``more``, into the archive; the transcript stays as it is.

        Args:
            stop: how many messages ended.
            metadata: what is merged into its line 1.
            ended_at: when it ended; None is now.
            more: lines behind them.

        Returns:
            The archive, durable.
        """
        writer, transcript = self.writer, self.transcript
        assert self.fd is not None
        self.keep_original()
        folder = writer.layout.archive(writer.stem)
        make_folder(folder)
        at = ended_at or self.now
        older = archive.of_stem(writer.layout, writer.stem)
        path = folder / archive.name_behind(at, transcript.session_id, older)
        with archive_file(path) as target:
            write_all(target, self._head_of_archive(stop, metadata, at))
            if stop < len(transcript.messages):
                write_lines(target, islice(transcript.messages, stop))
            else:
                writer.write_body(target, self.fd)
            write_all(target, b"".join(raw + b"\n" for raw in more))
        for stale in older:
            # An ending that a crash cut short left it, under the second of that time.
            if stale.path != path and stale.session_id == transcript.session_id:
                remove_archive(stale.path)
        return path

    def _head_of_archive(self, stop: int, metadata: Mapping[str, Any] | None, at: datetime) -> bytes:
        transcript = self.transcript
        ended = at.astimezone(UTC).isoformat(timespec="microseconds")
        own = {"session_id": transcript.session_id, "ended_at": ended, "reopened": None}
        since = {"history_from": min(transcript.history_start, stop)}
        inner = merged(transcript.inner, {**(metadata or {}), **own, **since})
        return transcript.head(now=at, inner=inner, offset=min(transcript.last_consolidated, stop))

    def ended(self, path: Path, *, stop: int, following: str) -> Entry:
        """Build what the journal keeps of the session that ends: its recent ids, and the count for the next.

        ``following`` is the ULID of the next one, empty for none.
        """
        transcript, state = self.transcript, self.journal_state
        return {
            **self.entry("ended"),
            "session": transcript.session_id,
            "next": following,
            "archive": path.name,
            "seq": self.seq,
            "ids": recent_ids(transcript, state, self.now, stop=stop),
        }

    def base(self, session_id: str, *, finals: int) -> Entry:
        """Build the entry by which the count of replies goes on in a session with ``finals`` answers."""
        return {**self.entry("base"), "session": session_id, "seq": self.seq, "finals": finals}

    def entry(self, do: str) -> Entry:
        """Begin an entry of the journal."""
        return {"at": self.now.astimezone(UTC).isoformat(), "do": do}

    @property
    def seq(self) -> int:
        """How many replies and notices the key had so far."""
        return self.journal_state.seq(place_of(self.transcript))

    def journal(self, *entries: Entry) -> None:
        """Add entries to the journal, with the next change of the transcript or at the end of this one."""
        self.pending.extend(self.journal_rows.changes(entries))
        self.journal_rows.added(entries)

    def journal_anew(self, *entries: Entry) -> None:
        """Put these entries alone in the journal's place, with the next change of the transcript."""
        self.pending.extend(self.journal_rows.replacing(entries))
        self.journal_rows.forget()

    def _taken(self) -> list[Change]:
        changes = list(self.pending)
        self.pending.clear()
        return changes

    def commit(self) -> None:
        """Commit what was added to the journal, without the transcript."""
        if self.pending:
            self.writer.state.write_now(self._taken())

    def begin_anew(self, new: Transcript, *, body: Sequence[bytes] = (), more: Sequence[Line] = ()) -> None:
        """Put ``new`` in the transcript's place, with the lines of ``body``, then ``more``."""
        self.writer.begin_anew(new, body=body, more=more, changes=self._taken())

    def renew(
        self,
        *,
        inner: Mapping[str, Any] | None = None,
        offset: int | None = None,
        more: Sequence[Line] = (),
    ) -> None:
        """Write the transcript anew with other metadata, a file where there was none, and ``more`` lines."""
        self.writer.renew(self.fd, inner=inner, offset=offset, more=more, changes=self._taken())

    def keep_original(self) -> None:
        """Keep a damaged transcript beside its place, before bytes of it are left out."""
        if self.fd is not None and self.transcript.needs_copy:
            self.writer.keep_original(self.fd)

    def remove(self) -> None:
        """Delete the transcript, and what is derived of it."""
        self.writer.remove(self._taken())


@contextmanager
def changing(writer: TranscriptWriter, journal_rows: JournalRows) -> Iterator[SessionChange]:
    """Lock the key, and open its transcript as it is known; what the journal got is committed at the end.

    Raises:
        StoreError.
        Changed: something was not as we left it, and has been read again: enter anew, as ``again`` does.
    """
    with key_locked(writer.layout, writer.stem):
        try:
            with writer.reading() as fd:
                journal_rows.refresh(writer.state)
                change = SessionChange(writer, journal_rows, fd, writer.clock(), [])
                yield change
                change.commit()
        except BaseException:
            # What was added to the journal in memory may not be in the database.
            journal_rows.forget()
            raise


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
