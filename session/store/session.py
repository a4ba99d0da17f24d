"""One conversation held open: everything of a view, and every way of writing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from session.disk.threads import WriteThenSync
from session.store import archived, ending
from session.store.cache import Handle
from session.store.fence import Wait
from session.store.journal_file import JournalFile
from session.store.split import place_of
from session.store.view import View
from session.store.writer import Line, OnlyIf, TranscriptWriter
from session.transcript.journal import Build, JournalState
from session.transcript.transcript import encode

T = TypeVar("T")
# A disk job on the two files of a key, under the epoch of its owner.
SessionJob = Callable[[TranscriptWriter, JournalFile, int, Wait | None], T]


class RunsJobs(Protocol):
    """Runs the disk jobs of a key off the event loop, one at a time."""

    async def run(
        self, handle: Handle, job: Callable[[Wait | None], T | WriteThenSync[T]], *, slow: bool = False
    ) -> T:
        """Run a job beside those of other keys; in a thread of its own if it is ``slow``."""
        ...


class Session(View):
    """One conversation held open by a turn or a command: everything of a view, and writing."""

    def __init__(self, handle: Handle, jobs: RunsJobs, epoch: int, *, clock: Callable[[], datetime]) -> None:
        """Write by the writers that ``handle`` has, in ``jobs``, as the owner with ``epoch``."""
        assert handle.writer is not None
        assert handle.journal_file is not None
        writer, journal_file = handle.writer, handle.journal_file

        # It holds no session, as its method would: a ring for each turn is the collector's work.
        async def record(build: Build) -> JournalState:
            return await jobs.run(
                handle,
                lambda wait: journal_file.record(epoch, build, lambda: place_of(writer.transcript), wait),
            )

        super().__init__(
            lambda: writer.transcript,
            lambda: journal_file.state,
            record,
            clock,
            key=handle.key,
            stem=writer.stem,
            path=writer.path,
        )
        self._jobs = jobs
        self._handle = handle
        self._writer = writer
        self._journal_file = journal_file
        self._epoch = epoch

    async def append(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Write message lines in one call and sync them; on return they survive a power cut.

        Returns:
            The index of the first line written.

        Raises:
            LineTooLong: a line is over MAX_LINE_BYTES; nothing was written.
            Fenced: another process owns the key; nothing was written.
            StoreError: the disk refused; a short write was cut back, the file is read again at the next use.
        """
        first = await self.append_if(lines, lambda _: True)
        assert first is not None
        return first

    async def append_if(self, lines: Sequence[Mapping[str, Any]], only_if: OnlyIf) -> int | None:
        """Write message lines as ``append`` does, onto a transcript that ``only_if`` accepts under the lock.

        Returns:
            The index of the first line written. None: the transcript is no longer one that ``only_if``
            accepts; nothing was written.

        Raises:
            LineTooLong, Fenced, StoreError: as ``append``.
        """
        if not lines:
            return len(self)
        writer, epoch = self._writer, self._epoch
        pairs: list[Line] = []

        def job(wait: Wait | None) -> int | WriteThenSync[int | None] | None:
            # Outside the loop's thread, and once: a job that meets a held lock is run again.
            if not pairs:
                pairs.extend([(encode(line), line) for line in lines])
            return writer.begin_append(epoch, pairs, wait, only_if=only_if)

        return await self._jobs.run(self._handle, job)

    async def checkpoint(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        last_consolidated: int | None = None,
        of: str | None = None,
    ) -> bool:
        """Renew line 1: ``metadata`` is merged into the old (None removes a name).

        Args:
            metadata: what changes in it.
            last_consolidated: how many messages memory holds now.
            of: the ULID that the active session must still have.

        Returns:
            False where it has another; nothing was written.

        Raises:
            Fenced, StoreError: as ``append``; the file is as it was.
        """
        writer, epoch = self._writer, self._epoch
        return await self._jobs.run(
            self._handle,
            lambda wait: writer.checkpoint(epoch, inner=metadata, offset=last_consolidated, wait=wait, of=of),
            slow=True,
        )

    async def remember(self, facts: Mapping[str, Any]) -> None:
        """Merge facts into line 1's metadata; before the first line they come into the file with that.

        Raises:
            Fenced, StoreError: as ``append``; the file is as it was.
        """
        if self._writer.exists:
            await self.checkpoint(metadata=facts)
        else:
            self._writer.transcript.inner.update(facts)

    async def end(self, *, metadata: Mapping[str, Any] | None = None) -> Path | None:
        """Archive the session, with ``metadata`` merged into its line 1, and begin a fresh one.

        Returns:
            The archive; None where there was no message, and nothing was archived.

        Raises:
            Fenced, StoreError: call it again; what was done by half is replaced.
        """
        return await self.change(lambda *writers: ending.end(*writers, metadata=metadata))

    async def change(self, job: SessionJob[T]) -> T:
        """Run a disk job that ends the session or puts another in its place; raises what the job does."""
        writers = (self._writer, self._journal_file, self._epoch)
        return await self._jobs.run(self._handle, lambda wait: job(*writers, wait), slow=True)

    def is_still(self, session_id: str) -> bool:
        """Say by the files as they are whether this is the active session, and the key ours; for threads.

        Raises:
            NewerFormat, StoreError: they cannot be read.
        """
        if not self._writer.fence.proves(self._epoch):
            return False
        found = archived.read_beginning(self._writer.path, self.stem)
        return found is not None and found.session_id == session_id
