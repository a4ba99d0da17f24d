"""Writes a key's journal under the same fence and by the same rules as its transcript. Runs in threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from durable import make_folder, write_all
from session.disk.layout import Layout, Seen, append_whole, read_file, seen, sync_or_cut
from session.errors import StoreError
from session.store.fence import Fence, Held, Wait
from session.store.writer import Changed, again
from session.transcript import journal_lines
from session.transcript.journal import Build, JournalState, SessionPlace
from session.transcript.journal_lines import Entry


class JournalFile:
    """One journal: what it says, and how an entry is added. One job at a time, as with the transcript."""

    __slots__ = ("_clock", "_fence", "_keep", "_key", "_name", "_seen", "_unread", "state")

    def __init__(
        self, layout: Layout, stem: str, key: str, *, fence: Fence, clock: Callable[[], datetime]
    ) -> None:
        self._name = str(layout.journal(stem))
        self.state = JournalState()
        self._key = key
        self._fence = fence
        self._clock = clock
        self._seen: Seen | None = None
        self._unread = True
        self._keep = 0

    @property
    def path(self) -> Path:
        """The file; made when asked for: it takes three times the memory of its name."""
        return Path(self._name)

    @property
    def is_read(self) -> bool:
        """Whether what the file held was read, and every entry since went in whole."""
        return not self._unread

    def current(self) -> bool:
        """Say whether the file is as we left it."""
        return not self._unread and seen(self._name) == self._seen

    def refresh(self) -> None:
        """Read the journal if it is not as we left it.

        Raises:
            NewerFormat, StoreError.
        """
        if self.current():
            return
        found = read_file(self.path)
        state = JournalState()
        self._seen, self._keep = None, 0
        if found is not None:
            entries, self._keep = journal_lines.read(found[0])
            for entry, size in entries:
                state.take(entry, size)
            self._seen = found[1]
        self.state = state
        self._unread = False

    def record(
        self, epoch: int, build: Build, place: Callable[[], SessionPlace], wait: Wait | None
    ) -> JournalState:
        """Add what ``build`` makes of the journal as it is, in one synced write; None adds nothing.

        Raises:
            Busy, Fenced, NewerFormat, StoreError.
        """

        def once() -> JournalState:
            with self.open() as fd, self._fence.hold(wait) as held:
                held.prove(epoch)
                self.compare(fd)
                entry = build(self.state, place())
                if entry:
                    self.write(held, fd, *(entry if isinstance(entry, list) else [entry]))
                    if self.state.overgrown(self._clock()):
                        self._rewrite(held, place())
                return self.state

        return again(once)

    @contextlib.contextmanager
    def open(self) -> Iterator[int | None]:
        """Open the journal, before the lock is taken; None where there is none yet."""
        try:
            fd: int | None = os.open(self._name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = None
        except OSError as error:
            raise StoreError(f"{self.path.name} cannot be opened: {error.strerror}") from error
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def compare(self, fd: int | None) -> None:
        """Make sure, under the lock, that the open journal is the one we know.

        Raises:
            Changed: it was not, and has been read again.
        """
        opened = None if fd is None else seen(fd)
        # Another process may have written or replaced it since, and what is known of it would be too little.
        if self._unread or not opened == self._seen == seen(self._name):
            self._unread = True
            self.refresh()
            raise Changed

    def write(self, held: Held, fd: int | None, *entries: Entry) -> None:
        """Add entries in one write while the lock is held.

        Raises:
            Fenced, StoreError: as for the transcript.
        """
        lines = [journal_lines.write(entry) for entry in entries]
        data = b"".join(lines)
        try:
            if fd is None:
                self._create(held, journal_lines.heading(self._key) + data)
            else:
                self._append(held, fd, data)
        except (OSError, StoreError) as error:
            self._unread = True
            # Who was overtaken meets all kinds of errors; this tells the true one.
            held.check()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the journal could not be written: {error.strerror}") from error
        for entry, line in zip(entries, lines, strict=True):
            self.state.take(entry, len(line))

    def begin_anew(self, held: Held, *entries: Entry) -> None:
        """Put these entries alone in the journal's place while the lock is held; without one it is deleted.

        Raises:
            Fenced: another writer overtook us; its journal still stands.
            StoreError: the disk refused; the old one still stands.
        """
        data = journal_lines.heading(self._key) + b"".join(journal_lines.write(entry) for entry in entries)
        try:
            if entries:
                make_folder(self.path.parent)
                with held.replacing(self.path) as fd:
                    write_all(fd, data)
            else:
                held.remove(self.path)
        except OSError as error:
            self._unread = True
            held.check()
            raise StoreError(f"the journal could not be renewed: {error.strerror}") from error
        self._unread = True
        self.refresh()

    def _append(self, held: Held, fd: int, data: bytes) -> None:
        assert self._seen is not None
        size = self._seen[1]
        # A crash in mid-write left half an entry: it goes first, or the new one would be glued to it.
        if self._keep < size:
            os.ftruncate(fd, self._keep)
            size = self._keep
        append_whole(fd, data, size=size)
        sync_or_cut(fd, size)
        # Who was frozen here may have been overtaken: the entry is in a file that is no longer the journal.
        held.check()
        self._seen = seen(fd)
        self._keep = size + len(data)

    def _create(self, held: Held, data: bytes) -> None:
        make_folder(self.path.parent)
        with held.replacing(self.path, new=True) as fd:
            write_all(fd, data)
            written = seen(fd)
        self._seen = written
        held.check()
        self._keep = len(data)

    def _rewrite(self, held: Held, place: SessionPlace) -> None:
        """Leave out what is older than 48 h."""
        found = read_file(self.path)
        if found is None:
            return
        now = self._clock()
        kept = self.state.pruned([entry for entry, _ in journal_lines.read(found[0])[0]], now, place)
        self.begin_anew(held, *kept)
