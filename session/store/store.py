"""The conversations of a workspace: opened under their fences, cached by bytes, read without a claim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, tzinfo
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import durable
from session.disk import file_system
from session.disk.layout import Layout, OpenFiles
from session.disk.threads import DiskJob, DiskThreads, WriteThenSync, start_thread
from session.errors import NotNow, StoreError
from session.store import archived, ending, listing
from session.store.cache import Handle, Handles
from session.store.enclosed import UNKNOWN, AwaitedFiles
from session.store.fence import FREEZE_S, Busy, Fence, Wait
from session.store.journal_file import JournalFile
from session.store.listing import SessionRow
from session.store.naming import resolve
from session.store.session import Session
from session.store.view import View
from session.store.writer import Moved, TranscriptWriter
from session.transcript import archive
from session.transcript.archive import Archived
from session.transcript.index import Exchange
from session.transcript.journal import JournalState
from session.transcript.key import SessionKey, needs_mark, plain_stem
from session.transcript.loading import load
from session.transcript.transcript import Transcript

__all__ = ["Exchange", "Session", "SessionRow", "Store", "View"]

T = TypeVar("T")
Writers = tuple[TranscriptWriter, JournalFile]
_TRIES = 8
# Why work that nobody waits for leaves a key alone, and when it looks again.
ELSEWHERE = "elsewhere"
ELSEWHERE_S = 5.0


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return durable.now()


def new_owner() -> str:
    """Name this process as no other ever was: up to the first colon the machine, and which start of it."""
    return f"{socket.gethostname()}.{_boot()}:{os.getpid()}:{durable.new_id()}"


@cache
def _boot() -> str:
    # Containers and clones have one another's names; not to know is a machine like any that does not.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return ""


class Store:
    """The conversations of one workspace, for one event loop of one process."""

    def __init__(
        self,
        workspace: Path,
        *,
        zone: tzinfo,
        clock: Callable[[], datetime] = utc_now,
        cache_bytes: int = 256 * 2**20,
        owner: str = "",
        freeze_s: float = FREEZE_S,
    ) -> None:
        """Touch nothing yet.

        Args:
            workspace: its folder; made when first written.
            zone: what listings write their times in.
            clock: the time now, aware.
            cache_bytes: how much of the transcripts may stay in memory while nobody uses them.
            owner: the name of this process in lock files, unlike any other's; empty: one is made.
            freeze_s: how long a lock may be held by a process that does not move.
        """
        file_system.load()
        self.layout = Layout(workspace)
        self.clock = clock
        self.owner = owner or new_owner()
        self._zone = zone
        self._freeze_s = freeze_s
        self._handles = Handles(cache_bytes)
        self._threads = DiskThreads()
        self._kept = OpenFiles()
        self._listing = listing.Listing(self.layout, zone)
        # Says whether the letters of a key are worked on in this process, and nowhere else.
        self.serves: Callable[[str], bool] = lambda key: True

    def open(self, key: SessionKey) -> AbstractAsyncContextManager[Session]:
        """Hold a conversation open: owned by this process, and as its file is now.

        Raises, when it is entered:
            NewerFormat: lock or journal were written by a newer version.
            StoreError: the files cannot be read or locked.
        """
        return _Opening(self._handles, key, self._own)

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

    async def _own(self, handle: Handle) -> Session:
        epoch = handle.owned()
        self._handles.found(epoch is not None)
        if epoch is None:
            epoch = await self.run(handle, lambda wait: self._claim(handle, wait))
        return Session(handle, self, epoch, clock=self.clock)

    async def run(
        self, handle: Handle, job: Callable[[Wait | None], T | WriteThenSync[T]], *, slow: bool = False
    ) -> T:
        """Run one disk job of a key: beside those of others, or in its own thread where it may take long.

        Raises:
            StoreError: the disk refused, at whatever step; else what the job does.
        """
        async with handle.turn:
            try:
                if not slow:
                    # The threads that all keys share must not wait for the lock of one.
                    with contextlib.suppress(Busy):
                        return await self._threads.start(lambda: job(None))
                wait = Wait()
                return await start_thread(lambda: job(wait), name="disk-slow", abort=wait.abort)
            except OSError as error:
                raise StoreError(
                    f"the disk reported an error: {error.strerror or error}", hint="check the disk"
                ) from error

    def beside(self, job: Callable[[], T]) -> DiskJob[T]:
        """Run a short disk job that belongs to no key among those of the keys."""
        return self._threads.start(job)

    def _claim(self, handle: Handle, wait: Wait | None) -> int:
        for _ in range(_TRIES):
            writer, journal_file = self._writers_of(handle, quick=wait is None)
            try:
                epoch = writer.claim(wait)
                journal_file.refresh()
            except Moved:
                # The file turned out to be another key's: the name is looked for again.
                handle.writer = handle.journal_file = None
                continue
            handle.writer, handle.journal_file = writer, journal_file
            return epoch
        raise StoreError("two conversations need the same file name", hint=f"check {self.layout.sessions}")

    def _writers_of(self, handle: Handle, *, quick: bool = False) -> tuple[TranscriptWriter, JournalFile]:
        """Return the writers of a key, new ones where nothing is held yet."""
        if (held := handle.held) is not None:
            return held
        # Nearly always the file is simply there: it is then read once, not twice.
        if not needs_mark(handle.key):
            writer, journal_file = self._new_writers(handle.key, plain_stem(handle.key))
            with contextlib.suppress(Moved):
                writer.refresh(quick=quick)
                if writer.exists:
                    return writer, journal_file
        return self._new_writers(handle.key, resolve(self.layout, handle.key))

    def _new_writers(self, key: SessionKey, stem: str) -> tuple[TranscriptWriter, JournalFile]:
        fence = Fence(self.layout, stem, owner=self.owner, freeze_s=self._freeze_s, kept=self._kept)
        writer = TranscriptWriter(self.layout, stem, key, fence=fence, clock=self.clock)
        return writer, JournalFile(self.layout, stem, key, fence=fence, clock=self.clock)

    async def both(
        self, first: SessionKey, second: SessionKey, job: Callable[[Writers, Writers, Wait], T]
    ) -> T:
        """Run a disk job that claims and writes one or two conversations, ``first``'s lock before.

        Raises:
            Fenced, NewerFormat, StoreError: as the job.
        """
        handles = [self._handles.enter(key) for key in (first, second)]

        def work(wait: Wait | None) -> T:
            for _ in range(_TRIES):
                for handle in handles:
                    handle.writer, handle.journal_file = self._writers_of(handle)
                try:
                    return job(self._writers_of(handles[0]), self._writers_of(handles[1]), wait or Wait())
                except Moved:
                    for handle in handles:
                        handle.writer = handle.journal_file = None
            raise StoreError("two conversations need the same file name")

        try:
            async with handles[1].turn if second != first else contextlib.nullcontext():
                return await self.run(handles[0], work, slow=True)
        finally:
            for handle in handles:
                self._handles.leave(handle)

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
        held = handle.held if handle is not None else None
        return self._view(*held) if held is not None else None

    async def look(self, key: SessionKey) -> View:
        """Read a conversation as it is now, without owning it; empty where it has no file yet."""

        def job() -> View:
            writers = self._writers_of(Handle(key))
            try:
                return self._looked(*writers)
            except Moved:
                return self._view(*writers)

        handle = self._handles.get(key)
        if handle is not None and handle.current() and handle.held is not None:
            return self._view(*handle.held)
        return await start_thread(job, name="disk-look")

    async def look_up(self, session_id: str) -> View | None:
        """Read a session by its ULID, active or ended; None where there is none."""

        def job() -> View | None:
            for row in self._listing.rows(ended=False):
                if row.id == session_id:
                    return self._looked(*self._new_writers(SessionKey(row.key), row.stem))
            found = archive.find(self.layout, session_id)
            return None if found is None else self._archived(found)

        return await start_thread(job, name="disk-look")

    def _archived(self, found: archive.Archived) -> View | None:
        read = load(found.path, found.stem)
        if read is None:
            return None
        transcript = read[0]
        key = SessionKey(transcript.key)
        return View(
            lambda: transcript, JournalState, None, self.clock, key=key, stem=found.stem, path=found.path
        )

    def _looked(self, writer: TranscriptWriter, journal_file: JournalFile) -> View:
        """Read both files, and leave an index behind where it spares the next look a long time."""
        journal_file.refresh()
        writer.refresh()
        self._handles.indexer.offer(writer)
        return self._view(writer, journal_file)

    def _view(self, writer: TranscriptWriter, journal_file: JournalFile) -> View:
        transcript, journal_state = writer.transcript, journal_file.state
        return View(
            lambda: transcript,
            lambda: journal_state,
            None,
            self.clock,
            key=writer.key,
            stem=writer.stem,
            path=writer.path,
        )

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
                fence = Fence(self.layout, ended.stem, owner=self.owner, freeze_s=self._freeze_s)
                archived.mend(fence, self.layout, ended, now=self.clock())
                return
            writer, _ = self._new_writers(SessionKey(transcript.key), transcript.stem)
            wait = Wait()
            writer.checkpoint(writer.claim(wait), inner=None, offset=None, wait=wait)

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
            writer, _ = self._writers_of(Handle(key))
            with contextlib.suppress(Moved):
                writer.refresh()
                return bool(ending.media_of(writer, ended=everything))
            return True

        def job(wait: Wait | None) -> bool:
            for _ in range(_TRIES):
                writer, journal_file = self._writers_of(handle)
                journal_file.refresh()
                with contextlib.suppress(Moved):
                    return ending.clear(writer, journal_file, what, wait=wait or Wait())
                handle.writer = handle.journal_file = None
            raise StoreError("two conversations need the same file name")

        try:
            kept = UNKNOWN
            if awaited is not None and await start_thread(names_files, name="disk-look"):
                kept = await awaited()
            what = ending.Clearing(list(ids), of, everything, kept)
            return await self.run(handle, job, slow=True)
        finally:
            self._handles.leave(handle)

    async def aclose(self) -> None:
        """End the threads; every change is on disk already."""
        await asyncio.to_thread(self._threads.close)
        await asyncio.to_thread(self._handles.close)
        self._kept.close()


class _Opening(AbstractAsyncContextManager[Session]):
    """Uses the handle of a key while it is open; a class, since every letter opens one."""

    def __init__(
        self, handles: Handles, key: SessionKey, own: Callable[[Handle], Awaitable[Session]]
    ) -> None:
        self._handles = handles
        self._key = key
        self._own = own
        self._handle: Handle | None = None

    async def __aenter__(self) -> Session:
        handle = self._handle = self._handles.enter(self._key)
        try:
            return await self._own(handle)
        except BaseException:
            # Whoever is cancelled here never leaves the context.
            self._handles.leave(handle)
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handles.leave(self._handle)
