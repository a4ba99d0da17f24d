"""The conversations of a workspace: cached by bytes, written through the state database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, TypeVar

import durable
from session.disk.layout import Layout
from session.disk.threads import start_thread
from session.errors import NotNow, StoreError
from session.store import archived, listing, rollover
from session.store.cache import Handle, Handles
from session.store.listing import SessionRow
from session.store.media import UNKNOWN, AwaitedFiles
from session.store.session import Session, View
from session.store.state import StoreState
from session.store.writer import Moved, TranscriptWriter
from session.transcript import archive
from session.transcript.archive import Archived
from session.transcript.index import Exchange
from session.transcript.journal import Journal, JournalState
from session.transcript.key import SessionKey, needs_mark, plain_stem
from session.transcript.loading import load, resolve
from session.transcript.transcript import Transcript

__all__ = ["Exchange", "Session", "SessionRow", "Store", "View"]

T = TypeVar("T")
_TRIES = 8
# Why work that nobody waits for leaves a key alone, and when it looks again.
ELSEWHERE = "elsewhere"
ELSEWHERE_S = 5.0


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return durable.now()


class Store:
    """The conversations of one workspace, for one event loop of one process."""

    def __init__(
        self,
        workspace: Path,
        *,
        zone: tzinfo,
        clock: Callable[[], datetime] = utc_now,
        cache_bytes: int = 256 * 2**20,
        state_folder: Path | None = None,
    ) -> None:
        """Touch nothing yet.

        Args:
            workspace: its folder; made when first written.
            zone: what listings write their times in.
            clock: the time now, aware.
            cache_bytes: how much of the transcripts may stay in memory while nobody uses them.
            state_folder: where its state database is; None: in ``state/`` of the workspace.
        """
        self.layout = Layout(workspace)
        self.clock = clock
        self.state = StoreState(state_folder or workspace / "state")
        self._zone = zone
        self._handles = Handles(cache_bytes)
        self._listing = listing.Listing(self.layout, zone)
        self._changed: Callable[[str, bool], Awaitable[None]] | None = None
        # Says whether the letters of a key are worked on in this process, and nowhere else.
        self.serves: Callable[[str], bool] = lambda key: True

    def shared_with(self, changed: Callable[[str, bool], Awaitable[None]]) -> None:
        """Expect other processes to write, too: journals are read at each use.

        ``changed`` is awaited when a conversation was changed here, with its key, and before it is cleared.
        """
        self._changed = changed

    @contextlib.asynccontextmanager
    async def open(self, key: SessionKey) -> AsyncIterator[Session]:
        """Hold a conversation open, as its file is now.

        Raises, when it is entered:
            NewerFormat: a newer version wrote the state database.
            StoreError: it cannot be read.
        """
        handle = self._handles.enter(key)
        try:
            if self._changed is not None and handle.writer is not None:
                handle.writer.journal.forget()
            current = handle.current()
            self._handles.hits += current
            self._handles.misses += not current
            if not current:
                await handle.run(self.state, lambda: self._read(handle))
        except BaseException:
            self._handles.leave(handle)
            raise
        try:
            yield Session(handle)
        finally:
            try:
                if handle.ahead is not None:
                    await handle.ahead.durable()
            finally:
                handle.ahead = None
                self._handles.leave(handle)
            if handle.wrote:
                handle.wrote = False
                await self._note_changed(key)

    def open_unasked(self, key: SessionKey) -> AbstractAsyncContextManager[Session]:
        """As ``open``, for work that nobody waits for: it leaves a key to the process that runs its turns.

        Raises:
            NotNow: another one may run a turn of the key, which would be fenced off.
        """
        self.check_serves(key)
        return self.open(key)

    def check_serves(self, key: str) -> None:
        """Make sure that no other process works on the letters of a key, as far as is known.

        Raises:
            NotNow: one does, or may.
        """
        if not self.serves(key):
            until = self.clock() + timedelta(seconds=ELSEWHERE_S)
            raise NotNow("another process is using this conversation", reason=ELSEWHERE, until=until)

    async def _note_changed(self, key: SessionKey, *, cleared: bool = False) -> None:
        await self.state.changed(key, cleared=cleared)
        if self._changed is not None:
            await self._changed(key, cleared)

    def _read(self, handle: Handle) -> TranscriptWriter:
        """Read what is not held, or no longer as the files have it."""
        for _ in range(_TRIES):
            writer = handle.writer or self._writer_of(handle.key)
            if not writer.current():
                # A command that ended the session has written there, too.
                writer.journal.forget()
            try:
                writer.refresh()
            except Moved:
                # The file turned out to be another key's: the name is looked for again.
                handle.writer = None
                continue
            writer.journal.refresh(self.state)
            handle.writer = writer
            return writer
        raise StoreError("two conversations need the same file name", hint=f"check {self.layout.sessions}")

    def _writer_of(self, key: SessionKey) -> TranscriptWriter:
        # Nearly always the file is simply there: it is then read once, not twice.
        if not needs_mark(key):
            writer = self._new_writer(key, plain_stem(key))
            with contextlib.suppress(Moved):
                writer.refresh()
                if writer.exists:
                    return writer
        return self._new_writer(key, resolve(self.layout, key))

    def _new_writer(self, key: SessionKey, stem: str) -> TranscriptWriter:
        return TranscriptWriter(self.layout, stem, key, state=self.state, clock=self.clock)

    def forget(self, key: SessionKey, *, cleared: bool = False) -> None:
        """Read the journal of a conversation again at its next use, since it was changed beside it.

        ``cleared``: turns that run on it write nothing from then on.
        """
        handle = self._handles.get(key)
        if handle is not None:
            handle.epoch += cleared
            if handle.writer is not None:
                handle.writer.journal.forget()

    async def both(
        self, first: SessionKey, second: SessionKey, job: Callable[[TranscriptWriter, TranscriptWriter], T]
    ) -> T:
        """Run a disk job that writes one or two conversations; turns of ``second`` begin again.

        Raises:
            Fenced, NewerFormat, StoreError: as the job.
        """
        handles = [self._handles.enter(key) for key in (first, second)]
        try:
            handles[1].epoch += 1
            await self._note_changed(second, cleared=True)
            async with handles[1].turn if second != first else contextlib.nullcontext():
                return await handles[0].run(self.state, lambda: self._in_place(handles, job))
        finally:
            for handle in handles:
                self._handles.leave(handle)
            for key in (first, second):
                await self._note_changed(key)

    def _in_place(self, handles: Sequence[Handle], job: Callable[..., T]) -> T:
        """Run a job with the writer of each handle, again where one turned out to be another key's."""
        for _ in range(_TRIES):
            try:
                return job(*[self._read(handle) for handle in handles])
            except Moved:
                for handle in handles:
                    handle.writer = None
        raise StoreError("two conversations need the same file name")

    def cache_use(self) -> tuple[int, int]:
        """Return how often a conversation was opened that was held already, and how often one was not."""
        return self._handles.hits, self._handles.misses

    def cached_bytes(self) -> int:
        """Return about how much memory the conversations take."""
        return self._handles.weight

    # -- reading without a claim ---------------------------------------------------------------------

    def look_here(self, key: SessionKey) -> View | None:
        """Return a conversation as it is in memory; None where it is not held."""
        handle = self._handles.get(key)
        return self._view(handle.writer) if handle is not None and handle.writer is not None else None

    async def look(self, key: SessionKey) -> View:
        """Read a conversation as it is now; empty where it has no file yet."""

        def job() -> View:
            writer = self._writer_of(key)
            with contextlib.suppress(Moved):
                self._look_at(writer)
            return self._view(writer)

        handle = self._handles.get(key)
        if handle is not None and handle.writer is not None and self._changed is None and handle.current():
            return self._view(handle.writer)
        await self.state.open(to_look=True)
        return await start_thread(job, name="disk-look")

    async def look_up(self, session_id: str) -> View | None:
        """Read a session by its ULID, active or ended; None where there is none."""

        def job() -> View | None:
            for row in self._listing.rows(ended=False):
                if row.id == session_id:
                    writer = self._new_writer(SessionKey(row.key), row.stem)
                    self._look_at(writer)
                    return self._view(writer)
            found = archive.find(self.layout, session_id)
            read = load(found.path, found.stem) if found is not None else None
            if found is None or read is None:
                return None
            transcript = read[0]
            journal = Journal(JournalState, None, self.clock)
            key = SessionKey(transcript.key)
            return View(lambda: transcript, journal, key=key, stem=found.stem, path=found.path)

        await self.state.open(to_look=True)
        return await start_thread(job, name="disk-look")

    def _look_at(self, writer: TranscriptWriter) -> None:
        """Read lines and journal, and leave an index behind where it spares the next look a long time."""
        writer.journal.refresh(self.state)
        writer.refresh()
        self._handles.indexer.offer(writer)

    def _view(self, writer: TranscriptWriter) -> View:
        transcript, journal_state = writer.transcript, writer.journal.state
        journal = Journal(lambda: journal_state, None, self.clock)
        return View(lambda: transcript, journal, key=writer.key, stem=writer.stem, path=writer.path)

    async def stem(self, key: SessionKey) -> str:
        """Return the name under which a key's files lie, suffix included."""
        return await start_thread(lambda: resolve(self.layout, key), name="disk-look")

    async def rows(self) -> list[SessionRow]:
        """List every active and ended session; a file that cannot be read hides no other."""
        return await start_thread(self._listing.rows, name="disk-list")

    async def verify(self, *, repair: bool = False) -> list[dict[str, Any]]:
        """Check every transcript; report those with a problem, and repair them where asked to."""

        def fix(transcript: Transcript, ended: Archived | None) -> None:
            if ended is not None:
                archived.mend(self.layout, ended, now=self.clock())
                return
            writer = self._new_writer(SessionKey(transcript.key), transcript.stem)
            writer.refresh()
            writer.checkpoint(inner=None, offset=None)

        # Of a damaged one each repair tells by itself; the rest is checked all the same.
        with contextlib.suppress(StoreError):
            await self.state.open(to_look=not repair)
        return await start_thread(
            lambda: listing.verify(self.layout, fix if repair else None), name="disk-verify"
        )

    async def clear(
        self,
        key: SessionKey,
        *,
        ids: Iterable[str] = (),
        of: str | None = None,
        everything: bool = False,
        awaited: Callable[[], Awaitable[AwaitedFiles]] | None = None,
    ) -> bool:
        """Delete the active transcript without a trace but its ids; running turns of the key end unwritten.

        Args:
            key: the conversation.
            ids: messages whose turn runs and may not have stored a line yet.
            of: the ULID that the active session must still have, else nothing is deleted.
            everything: ended sessions, journal, its own memory and the files that it alone names go, too.
            awaited: names the files of letters: they stay; asked before anything is deleted, and only where
                the chat names a file at all.

        Returns:
            Whether there was a transcript.
        """
        handle = self._handles.enter(key)

        def names_files() -> bool:
            writer = self._writer_of(key)
            with contextlib.suppress(Moved):
                writer.refresh()
                return bool(rollover.media_of(writer, ended=everything))
            return True

        def job(writer: TranscriptWriter) -> bool:
            return rollover.clear(writer, ids=list(ids), of=of, everything=everything, awaited=kept)

        try:
            kept = UNKNOWN
            if awaited is not None and await start_thread(names_files, name="disk-look"):
                kept = await awaited()
            handle.epoch += 1
            await self._note_changed(key, cleared=True)
            cleared = await handle.run(self.state, lambda: self._in_place([handle], job))
            await self.state.compact()
            return cleared
        finally:
            self._handles.leave(handle)
            await self._note_changed(key)

    async def aclose(self) -> None:
        """End the threads, and close the state database if nobody else uses it."""
        await asyncio.to_thread(self._handles.indexer.close)
        await self.state.aclose()
