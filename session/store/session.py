"""One conversation held open: everything of a view, and every way of writing it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from durable import Change
from session.errors import Fenced
from session.store import ending
from session.store.cache import Ahead, Handle
from session.store.journal_rows import JournalRows
from session.store.split import place_of
from session.store.view import View
from session.store.writer import Line, OnlyIf, TranscriptWriter
from session.transcript.journal import Build, JournalState
from session.transcript.loading import read_beginning
from session.transcript.transcript import encode

T = TypeVar("T")
# A disk job on the transcript and the journal of a key.
SessionJob = Callable[[TranscriptWriter, JournalRows], T]


class RunsJobs(Protocol):
    """Runs the disk jobs of a key, one at a time."""

    async def run(self, handle: Handle, job: Callable[[], T]) -> T:
        """Run a job in a thread."""
        ...

    async def in_turn(self, handle: Handle, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine while no other job of the key runs, to its end even if the caller is cancelled."""
        ...


class Session(View):
    """One conversation held open by a turn or a command: everything of a view, and writing."""

    def __init__(self, handle: Handle, jobs: RunsJobs, *, clock: Callable[[], datetime]) -> None:
        """Write by the writers that ``handle`` has, in ``jobs``."""
        assert handle.writer is not None
        assert handle.journal_rows is not None
        writer, journal_rows, epoch = handle.writer, handle.journal_rows, handle.epoch

        # It holds no session, as its method would: a ring for each turn is the collector's work.
        async def record(build: Build) -> JournalState:
            async def once() -> JournalState:
                if handle.epoch != epoch:
                    raise _fenced()
                handle.wrote = True
                return await journal_rows.record(writer.state, build, lambda: place_of(writer.transcript))

            return await jobs.in_turn(handle, once)

        super().__init__(
            lambda: writer.transcript,
            lambda: journal_rows.state,
            record,
            clock,
            key=handle.key,
            stem=writer.stem,
            path=writer.path,
        )
        self._jobs = jobs
        self._handle = handle
        self._writer = writer
        self._journal_rows = journal_rows
        self._epoch = epoch

    async def append(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Write message lines; on return they are in the file and survive a power cut.

        Returns:
            The index of the first line written.

        Raises:
            LineTooLong: a line is over MAX_LINE_BYTES; nothing was written.
            Fenced: the conversation was ended, cleared or replaced meanwhile; nothing was written.
            StoreError: the disk refused; nothing was written.
        """
        first = await self.append_if(lines, lambda _: True)
        assert first is not None
        return first

    async def append_ahead(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the last lines of a turn as ``append`` does, without waiting for the disk where that goes.

        They are known at once. Until ``ahead`` says that they are durable nobody may be told of them, and
        nothing else of the conversation is written.

        Raises:
            LineTooLong, Fenced, StoreError: as ``append``.
        """
        handle, writer = self._handle, self._writer
        pairs: list[Line] = [(encode(line), line) for line in lines]
        await handle.turn.acquire()
        commit = None
        try:
            if handle.epoch != self._epoch:
                raise _fenced()
            commit = writer.append_ahead(pairs)
        finally:
            if commit is None:
                handle.turn.release()
        if commit is None:
            await self.append(lines)
            return

        async def finish() -> None:
            try:
                await writer.finish_ahead(commit, pairs)
            finally:
                handle.turn.release()

        handle.wrote = True
        handle.ahead = Ahead(commit, asyncio.create_task(finish(), name="append"))

    @property
    def ahead(self) -> Ahead | None:
        """The lines that ``append_ahead`` has handed over, while the conversation is open."""
        return self._handle.ahead

    async def append_if(
        self, lines: Sequence[Mapping[str, Any]], only_if: OnlyIf, changes: Sequence[Change] = ()
    ) -> int | None:
        """Write lines and ``changes``, as ``append`` does, onto a transcript that ``only_if`` accepts.

        Returns:
            The index of the first line written. None: the transcript is no longer one that ``only_if``
            accepts; nothing was written.

        Raises:
            LineTooLong, Fenced, StoreError: as ``append``.
        """
        if not lines:
            return len(self)
        pairs: list[Line] = [(encode(line), line) for line in lines]

        async def once() -> int | None:
            if self._handle.epoch != self._epoch:
                raise _fenced()
            self._handle.wrote = True
            return await self._writer.append(pairs, changes, only_if=only_if)

        return await self._jobs.in_turn(self._handle, once)

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
        return await self.change(
            lambda writer, _: writer.checkpoint(inner=metadata, offset=last_consolidated, of=of)
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
        """Run a disk job that ends the session or puts another in its place.

        Raises:
            Fenced: the conversation was cleared or replaced meanwhile; nothing was done.
            Exception: what the job raises.
        """
        self._handle.wrote = True

        def once() -> T:
            if self._handle.epoch != self._epoch:
                raise _fenced()
            return job(self._writer, self._journal_rows)

        return await self._jobs.run(self._handle, once)

    def is_still(self, session_id: str) -> bool:
        """Say by the file as it is whether this is the active session; for threads.

        Raises:
            NewerFormat, StoreError: they cannot be read.
        """
        found = read_beginning(self._writer.path, self.stem)
        return found is not None and found.session_id == session_id


def _fenced() -> Fenced:
    return Fenced("this conversation was cleared or replaced meanwhile")
