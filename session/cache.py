"""What is kept of the conversations between turns: those used last, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from session.indexer import Indexer
from session.key import SessionKey
from session.lines import Lines
from session.loading import WHOLE_BYTES
from session.logbook import Logbook
from session.scribe import Scribe

MAX_FILES = 64  # transcripts that read from an open file while nobody uses them


class Room:
    """The writers of one key, and who uses them."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.pins = 0
        self.weighed = 0  # its share in the sum of the rooms
        self.reads = False  # whether it was counted among those that hold a file open
        self.turn = asyncio.Lock()  # one disk job at a time
        self.scribe: Scribe | None = None
        self.book: Logbook | None = None

    def current(self) -> bool:
        """Say whether what is held is what the files hold; a few calls that touch no disk."""
        if self.turn.locked() or self.scribe is None or self.book is None:
            return False
        return self.book.current() and self.scribe.current()

    def owned(self) -> int | None:
        """Return the epoch if nothing must be read or claimed before the next turn.

        The transcript is looked at, since a person may edit it; the journal is written by owners alone, and
        another owner shows in the lock.
        """
        if self.turn.locked() or self.scribe is None or self.book is None:
            return None
        return self.scribe.owned() if self.book.is_read and self.scribe.current() else None

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        held = 0 if self.scribe is None else self.scribe.transcript.weight
        return 2048 + held + (0 if self.book is None else 2 * self.book.ledger.size)

    @property
    def reads_from_file(self) -> bool:
        """Whether its transcript holds a file open to read older lines from."""
        return self.scribe is not None and isinstance(self.scribe.transcript.messages, Lines)

    def slim(self) -> None:
        """Have a transcript that grew big in memory read anew, which leaves its newest lines there alone."""
        if self.scribe is not None and self.scribe.transcript.line_bytes > 2 * WHOLE_BYTES:
            transcript = self.scribe.transcript
            if transcript.size > WHOLE_BYTES and not transcript.whole:
                self.scribe.forget()


class Rooms:
    """The rooms of a store; those used longest ago are given up first, never one in use."""

    def __init__(self, max_bytes: int, *, max_files: int = MAX_FILES) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._rooms: OrderedDict[SessionKey, Room] = OrderedDict()
        self.indexer = Indexer()
        self.weight = 0
        self._files = 0

    def get(self, key: SessionKey) -> Room | None:
        """Look at a room without using it."""
        return self._rooms.get(key)

    def enter(self, key: SessionKey) -> Room:
        """Begin to use a room."""
        room = self._rooms.setdefault(key, Room(key))
        self._rooms.move_to_end(key)
        room.pins += 1
        return room

    def leave(self, room: Room) -> None:
        """End one use of a room; give up others while they are too heavy together."""
        room.pins -= 1
        if room.pins == 0 and room.scribe is not None:
            self.indexer.offer(room.scribe)
            room.slim()
        self._count(room, room.weight, reads=room.reads_from_file)
        for key in list(self._rooms) if self._is_full() else ():
            if not self._is_full():
                return
            if self._rooms[key].pins == 0:
                self._count(self._rooms.pop(key), 0, reads=False)

    def close(self) -> None:
        """Wait until what is being written is written."""
        self.indexer.close()

    def _is_full(self) -> bool:
        return self.weight > self._max_bytes or self._files > self._max_files

    def _count(self, room: Room, weight: int, *, reads: bool) -> None:
        self.weight += weight - room.weighed
        self._files += reads - room.reads
        room.weighed, room.reads = weight, reads
