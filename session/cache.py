"""What is kept of one key between turns."""

from __future__ import annotations

import asyncio

from session.key import SessionKey
from session.logbook import Logbook
from session.scribe import Scribe


class Room:
    """The writers of one key, and who uses them."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.pins = 0
        self.weighed = 0  # its share in the sum of the store
        self.turn = asyncio.Lock()  # one disk job at a time
        self.scribe: Scribe | None = None
        self.book: Logbook | None = None

    def current(self) -> bool:
        """Say whether what is held is what the files hold; a few calls that touch no disk."""
        if self.turn.locked() or self.scribe is None or self.book is None:
            return False
        return self.book.current() and self.scribe.current()

    def owned(self) -> int | None:
        """Return the epoch if nothing must be read or claimed before the next turn."""
        return self.scribe.owned() if self.scribe is not None and self.current() else None

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        held = 0 if self.scribe is None else self.scribe.transcript.weight
        return 2048 + held + (0 if self.book is None else 2 * self.book.ledger.size)
