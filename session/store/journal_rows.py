"""The journal of a session key as rows of the state database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime

from durable import Change, Conflict
from session.store.state import StoreState, encoded
from session.transcript.journal import Build, Entry, JournalState, SessionPlace
from session.transcript.line import decode, dump

_READ = "SELECT n, entry FROM journal WHERE key = ? ORDER BY n"
_ADD = "INSERT INTO journal VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_FORGET = "DELETE FROM journal WHERE key = ? AND n < ?"


class JournalRows:
    """One journal: what it says, and how entries are added. One change at a time: callers serialise them.

    An entry's number is its place. Two processes that add one at once choose the same, and the second of
    them meets a ``Conflict``: it reads the journal again.
    """

    __slots__ = ("_clock", "_key", "_next", "is_read", "size", "state")

    def __init__(self, key: str, *, clock: Callable[[], datetime]) -> None:
        self._key = encoded(key)
        self._clock = clock
        self._next = 1
        self.is_read = False
        self.size = 0
        self.state = JournalState()

    def forget(self) -> None:
        """Let the next use read it again."""
        self.is_read = False

    def refresh(self, state: StoreState) -> None:
        """Read it, if it was not read since ``forget``; for threads.

        Raises:
            StoreError: it cannot be read.
        """
        if not self.is_read:
            self._take_rows(state.read_now(_READ, (self._key,)))

    async def read(self, state: StoreState) -> None:
        """Read it as ``refresh`` does."""
        if not self.is_read:
            self._take_rows(await state.read(_READ, (self._key,)))

    def _take_rows(self, rows: Sequence[tuple[int, bytes]]) -> None:
        journal = JournalState()
        for _, raw in rows:
            journal.take(decode(raw), len(raw))
        self.state, self._next, self.is_read = journal, rows[-1][0] + 1 if rows else 1, True

    async def record(
        self, state: StoreState, build: Build, place: Callable[[], SessionPlace]
    ) -> JournalState:
        """Add what ``build`` makes of the journal as it is; None adds nothing.

        Raises:
            StoreError: the disk refused; nothing was added.
        """
        while True:
            await self.read(state)
            built = build(self.state, place())
            entries = built if isinstance(built, list) else [built] if built else []
            if not entries:
                return self.state
            try:
                await state.write(self.changes(entries))
            except Conflict:
                self.forget()
                continue
            self.added(entries)
            if self.state.overgrown(self._clock()):
                rows = await state.read(_READ, (self._key,))
                kept = self.state.pruned([decode(raw) for _, raw in rows], self._clock(), place())
                # Another process that added one meanwhile prunes as well.
                with contextlib.suppress(Conflict):
                    await state.write(self.replacing(kept))
                self.forget()
                await self.read(state)
            return self.state

    def changes(self, entries: Sequence[Entry]) -> list[Change]:
        """Return the changes that add entries; ``added`` follows when they are durable."""
        return [
            Change(_ADD, (self._key, number, dump(entry)), required=number == self._next)
            for number, entry in enumerate(entries, self._next)
        ]

    def added(self, entries: Sequence[Entry]) -> None:
        """Take in entries whose changes are durable."""
        for entry in entries:
            self.state.take(entry, len(dump(entry)))
        self._next += len(entries)

    def replacing(self, entries: Sequence[Entry]) -> list[Change]:
        """Return the changes that put these entries alone in its place; it is read again behind them."""
        return [Change(_FORGET, (self._key, self._next)), *self.changes(entries)]
