"""The conversations of a workspace: opened under their fences, cached by bytes, read without a claim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, TypeVar

from ulid import ULID

from session import archive, ended, ending, listing
from session.cache import Room, Rooms
from session.disk import Layout, OpenFiles
from session.errors import StoreError
from session.fence import FREEZE_S, Busy, Fence, Wait
from session.hop import Half, Hop, Job, start_thread
from session.index import Exchange
from session.journal import Build, Ledger
from session.key import SessionKey, needs_mark, plain_stem
from session.listing import SessionRow
from session.loading import load
from session.logbook import Logbook
from session.naming import resolve
from session.scribe import Moved, OnlyIf, Scribe
from session.transcript import encode
from session.view import View

__all__ = ["Exchange", "Session", "SessionRow", "Store", "View"]

T = TypeVar("T")
Hands = tuple[Scribe, Logbook]
Change = Callable[[Scribe, Logbook, int, Wait | None], T]  # under the epoch of its owner
_TRIES = 8


def utc_now() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(UTC)


def new_owner() -> str:
    """Name this process as no other ever was."""
    return f"{socket.gethostname()}:{os.getpid()}:{ULID()}"


class Session(View):
    """One conversation held open by a turn or a command: everything of a view, and writing."""

    def __init__(self, store: Store, room: Room, scribe: Scribe, book: Logbook, epoch: int) -> None:
        super().__init__(lambda: scribe.transcript, lambda: book.ledger, self._record, store.clock)
        self.key = room.key
        self.stem = scribe.stem
        self.path = scribe.path
        self._store = store
        self._room = room
        self._scribe = scribe
        self._book = book
        self._epoch = epoch

    async def append(self, lines: Sequence[Mapping[str, Any]], *, only_if: OnlyIf | None = None) -> int:
        """Write message lines in one call and sync them; on return they survive a power cut.

        Returns:
            The index of the first line written; -1 where ``only_if``, asked under the lock, says no to the
            transcript, and nothing was written.

        Raises:
            LineTooLong: a line is over MAX_LINE_BYTES; nothing was written.
            Fenced: another process owns the key; nothing was written.
            StoreError: the disk refused; a short write was cut back, the file is read again at the next use.
        """
        if not lines:
            return len(self)
        scribe, epoch = self._scribe, self._epoch
        pairs: list[tuple[bytes, Mapping[str, Any]]] = []

        def job(wait: Wait | None) -> int | Half[int]:
            if not pairs:
                pairs.extend([(encode(line), line) for line in lines])
            return scribe.begin_append(epoch, pairs, wait, only_if=only_if)

        return await self._store.run(self._room, job)

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
        scribe, epoch = self._scribe, self._epoch
        return await self._store.run(
            self._room,
            lambda wait: scribe.checkpoint(epoch, inner=metadata, offset=last_consolidated, wait=wait, of=of),
            slow=True,
        )

    async def end(self, *, metadata: Mapping[str, Any] | None = None) -> Path | None:
        """Archive the session, with ``metadata`` merged into its line 1, and begin a fresh one.

        Returns:
            The archive; None where there was no message, and nothing was archived.

        Raises:
            Fenced, StoreError: call it again; what was done by half is replaced.
        """
        return await self.change(lambda *hands: ending.end(*hands, metadata=metadata))

    async def change(self, job: Change[T]) -> T:
        """Run a disk job that ends the session or puts another in its place; raises what the job does."""
        hands = (self._scribe, self._book, self._epoch)
        return await self._store.run(self._room, lambda wait: job(*hands, wait), slow=True)

    def is_still(self, session_id: str) -> bool:
        """Say by the files as they are whether this is the active session, and the key ours; for threads.

        Raises:
            NewerFormat, StoreError: they cannot be read.
        """
        if not self._scribe.fence.proves(self._epoch):
            return False
        found = ended.read_beginning(self._scribe.path, self.stem)
        return found is not None and found.session_id == session_id

    async def _record(self, build: Build) -> Ledger:
        scribe, book, epoch = self._scribe, self._book, self._epoch
        return await self._store.run(
            self._room,
            lambda wait: book.record(epoch, build, lambda: ending.place_of(scribe.transcript), wait),
        )


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
        self.layout = Layout(workspace)
        self.clock = clock
        self.owner = owner or new_owner()
        self._zone = zone
        self._freeze_s = freeze_s
        self._rooms = Rooms(cache_bytes)
        self._hop = Hop()
        self._kept = OpenFiles()
        self._listing = listing.Listing(self.layout, zone)

    @contextlib.asynccontextmanager
    async def open(self, key: SessionKey) -> AsyncIterator[Session]:
        """Hold a conversation open: owned by this process, and as its file is now.

        Raises:
            NewerFormat: lock or journal were written by a newer version.
            StoreError: the files cannot be read or locked.
        """
        room = self._rooms.enter(key)
        try:
            epoch = room.owned()
            if epoch is None:
                epoch = await self.run(room, lambda wait: self._claim(room, wait))
            assert room.scribe is not None
            assert room.book is not None
            yield Session(self, room, room.scribe, room.book, epoch)
        finally:
            self._rooms.leave(room)

    async def run(self, room: Room, job: Callable[[Wait | None], T | Half[T]], *, slow: bool = False) -> T:
        """Run one disk job of a key: beside those of others, or in its own thread where it may take long."""
        async with room.turn:
            if not slow:
                with contextlib.suppress(Busy):
                    return await self._hop.start(lambda: job(None))
            wait = Wait()
            return await start_thread(lambda: job(wait), name="disk-slow", abort=wait.abort)

    def beside(self, job: Callable[[], T]) -> Job[T]:
        """Run a short disk job that belongs to no key among those of the keys."""
        return self._hop.start(job)

    def _claim(self, room: Room, wait: Wait | None) -> int:
        for _ in range(_TRIES):
            scribe, book = self._hands(room, quick=wait is None)
            try:
                epoch = scribe.claim(wait)
                book.refresh()
            except Moved:
                room.scribe = room.book = None
                continue
            room.scribe, room.book = scribe, book
            return epoch
        raise StoreError("two conversations fight for one file name", hint=f"look at {self.layout.sessions}")

    def _hands(self, room: Room, *, quick: bool = False) -> tuple[Scribe, Logbook]:
        """Return the writers of a key, new ones where nothing is held yet."""
        if room.scribe is not None and room.book is not None:
            return room.scribe, room.book
        if not needs_mark(
            room.key
        ):  # nearly always the file is simply there: it is then read once, not twice
            scribe, book = self._writers(room.key, plain_stem(room.key))
            with contextlib.suppress(Moved):
                scribe.refresh(quick=quick)
                if scribe.exists:
                    return scribe, book
        return self._writers(room.key, resolve(self.layout, room.key))

    def _writers(self, key: SessionKey, stem: str) -> tuple[Scribe, Logbook]:
        fence = Fence(self.layout, stem, owner=self.owner, freeze_s=self._freeze_s, kept=self._kept)
        scribe = Scribe(self.layout, stem, key, fence=fence, clock=self.clock)
        return scribe, Logbook(self.layout, stem, key, fence=fence, clock=self.clock)

    async def both(self, first: SessionKey, second: SessionKey, job: Callable[[Hands, Hands, Wait], T]) -> T:
        """Run a disk job that claims and writes one or two conversations, ``first``'s lock before.

        Raises:
            Fenced, NewerFormat, StoreError: as the job.
        """
        rooms = [self._rooms.enter(key) for key in (first, second)]

        def work(wait: Wait | None) -> T:
            for _ in range(_TRIES):
                for room in rooms:
                    room.scribe, room.book = self._hands(room)
                try:
                    return job(self._hands(rooms[0]), self._hands(rooms[1]), wait or Wait())
                except Moved:
                    for room in rooms:
                        room.scribe = room.book = None
            raise StoreError("two conversations fight for one file name")

        try:
            async with rooms[1].turn if second != first else contextlib.nullcontext():
                return await self.run(rooms[0], work, slow=True)
        finally:
            for room in rooms:
                self._rooms.leave(room)

    def cached_bytes(self) -> int:
        """Return about how much memory the conversations take."""
        return self._rooms.weight

    # -- reading without a claim ---------------------------------------------------------------------

    async def look(self, key: SessionKey) -> View:
        """Read a conversation as it is now, without owning it; empty where it has no file yet."""

        def job() -> View:
            hands = self._hands(Room(key))
            try:
                return self._looked(*hands)
            except Moved:
                return self._view(*hands)

        room = self._rooms.get(key)
        if room is not None and room.current() and room.scribe is not None and room.book is not None:
            return self._view(room.scribe, room.book)
        return await start_thread(job, name="disk-look")

    async def look_up(self, session_id: str) -> View | None:
        """Read a session by its ULID, active or ended; None where there is none."""

        def job() -> View | None:
            for row in self._listing.rows(ended=False):
                if row.id == session_id:
                    return self._looked(*self._writers(SessionKey(row.key), row.stem))
            found = archive.find(self.layout, session_id)
            return None if found is None else self._archived(found)

        return await start_thread(job, name="disk-look")

    def _archived(self, found: archive.Archived) -> View | None:
        read = load(found.path, found.stem)
        if read is None:
            return None
        transcript = read[0]
        view = View(lambda: transcript, Ledger, None, self.clock)
        view.key, view.stem, view.path = SessionKey(transcript.key), found.stem, found.path
        return view

    def _looked(self, scribe: Scribe, book: Logbook) -> View:
        """Read both files, and leave an index behind where it spares the next look a long time."""
        book.refresh()
        scribe.refresh()
        self._rooms.indexer.offer(scribe)
        return self._view(scribe, book)

    def _view(self, scribe: Scribe, book: Logbook) -> View:
        transcript, ledger = scribe.transcript, book.ledger
        view = View(lambda: transcript, lambda: ledger, None, self.clock)
        view.key, view.stem, view.path = scribe.key, scribe.stem, scribe.path
        return view

    async def stem(self, key: SessionKey) -> str:
        """Return the name under which a key's files lie, suffix included."""
        return await start_thread(lambda: resolve(self.layout, key), name="disk-look")

    async def rows(self) -> list[SessionRow]:
        """List every active and ended session; a file that cannot be read hides no other."""
        return await start_thread(self._listing.rows, name="disk-list")

    async def verify(self, *, repair: bool = False) -> list[dict[str, Any]]:
        """Check every transcript; report those with a problem, and repair them where asked to."""

        def fix(key: SessionKey, stem: str) -> None:
            scribe, _ = self._writers(key, stem)
            wait = Wait()
            scribe.checkpoint(scribe.claim(wait), inner=None, offset=None, wait=wait)

        return await start_thread(
            lambda: listing.verify(self.layout, fix if repair else None), name="disk-verify"
        )

    async def clear(
        self, key: SessionKey, *, ids: Iterable[str] = (), of: str | None = None, everything: bool = False
    ) -> bool:
        """Delete the active transcript without a trace but its ids; running turns of the key end unwritten.

        Args:
            key: the conversation.
            ids: messages whose turn runs and may not have stored a line yet.
            of: the ULID that the active session must still have, else nothing is deleted.
            everything: ended sessions, journal and the chat's own memory go as well.

        Returns:
            Whether there was a transcript.
        """
        room = self._rooms.enter(key)
        what = ending.Clearing(list(ids), of, everything)

        def job(wait: Wait | None) -> bool:
            for _ in range(_TRIES):
                scribe, book = self._hands(room)
                book.refresh()
                with contextlib.suppress(Moved):
                    return ending.clear(scribe, book, what, wait=wait or Wait())
                room.scribe = room.book = None
            raise StoreError("two conversations fight for one file name")

        try:
            return await self.run(room, job, slow=True)
        finally:
            self._rooms.leave(room)

    async def aclose(self) -> None:
        """End the threads; every change is on disk already."""
        await asyncio.to_thread(self._hop.close)
        await asyncio.to_thread(self._rooms.close)
        self._kept.close()
