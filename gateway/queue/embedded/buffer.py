"""What of one box is in memory: the letters next in line, those being worked on, and who takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from gateway.queue.embedded.table import QueueRow
from gateway.queue.feed import HeldBytes, LetterFeed
from gateway.queue.mailbox import Letter


class EmbeddedLetter(Letter):
    """A letter taken from the table of this process."""

    __slots__ = ("busy", "erased", "given_back", "gone", "row")

    def __init__(self, box: str, row: QueueRow, *, suspect: bool) -> None:
        super().__init__(box, row.id, row.body, key=row.key, headers=row.headers, suspect=suspect)
        self.row = row.seq
        self.given_back = False
        self.gone = False
        # Its row was removed while it was worked on: nothing of it is to be stored again.
        self.erased = False
        # Changes under way that remove the letter.
        self.busy = 0

    @property
    def lost(self) -> bool:
        """Whether it was given back before it was settled."""
        return self.given_back


class Buffer:
    """One box: its letters go, in the order of their rows, to the first of its takers.

    ``window`` letters may be in memory, taken ones included, and as many bytes as ``bytes_held`` leaves this
    box; the rest waits in the table behind row ``read_to``. A ``visit`` lasts from one change of taker to the
    next: each begins with nothing in memory.
    """

    def __init__(self, name: str, window: int, bytes_held: HeldBytes) -> None:
        self.name = name
        self.window = window
        self.count = 0
        self.visit = 0
        self.loading = False
        self.read_to = 0
        self._takers: list[Taker] = []
        self._bytes_held = bytes_held
        self._waiting: deque[EmbeddedLetter] = deque()
        self._out: dict[int, EmbeddedLetter] = {}
        self._more = True
        # Of the first letter outside memory, as far as it is known.
        self._next_size = 1
        self._old_row = 0
        self._given_back: set[int] = set()
        bytes_held.join(self)

    def restart(self, count: int, old_row: int) -> None:
        """Begin with ``count`` letters in the table; those up to ``old_row`` may have been delivered."""
        self.forget()
        self.count, self._old_row = count, old_row
        self._given_back.clear()

    # ── how much fits ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def held(self) -> int:
        """How many letters are in memory."""
        return len(self._waiting) + len(self._out)

    @property
    def free(self) -> int:
        """How many more letters memory may hold."""
        return self.window - self.held

    @property
    def free_bytes(self) -> int:
        """How many bytes to read at most; above zero, since a box that holds nothing takes any letter."""
        return max(1, self._bytes_held.bound_of(self) - self._bytes_held.of(self))

    def wants_rows(self) -> bool:
        """Say whether to read the next rows now: there may be some, and enough fits to be worth a query."""
        if not self.is_taken or not self._more or self.loading:
            return False
        if not self._bytes_held.takes(self, self._next_size):
            return False
        return self.free > 0 if not self._waiting else self.free * 2 >= self.window

    @property
    def is_taken(self) -> bool:
        """Whether somebody takes from it now."""
        return bool(self._takers) and not self._takers[0].left

    # ── rows come and go ──────────────────────────────────────────────────────────────────────────────────

    def stored(self, row: QueueRow) -> None:
        """Take note of a row just committed: straight into memory where nothing older waits outside."""
        self.count += 1
        fits = self.free > 0 and self._bytes_held.takes(self, len(row.body))
        if self.is_taken and not self._more and fits:
            self._append(row)
        else:
            self._more = True

    def loaded(self, rows: Sequence[QueueRow], more: bool) -> None:
        """Take in the rows behind ``read_to``; ``more`` says whether others may follow."""
        self._more = more
        self._next_size = 1
        for row in rows:
            # Other boxes may have taken the bytes since these rows were asked for.
            if not self._bytes_held.takes(self, len(row.body)):
                self._more, self._next_size = True, len(row.body)
                return
            self._append(row)

    def _append(self, row: QueueRow) -> None:
        suspect = row.seq <= self._old_row or row.seq in self._given_back
        self._waiting.append(EmbeddedLetter(self.name, row, suspect=suspect))
        self._bytes_held.add(self, len(row.body))
        self.read_to = row.seq
        self._takers[0].arrived.set()

    def freed(self, letter: EmbeddedLetter, *, removed: bool) -> None:
        """Take note of the end of a change that was to remove ``letter``."""
        letter.busy -= 1
        if removed and not letter.gone:
            letter.gone = True
            self.count -= 1
            self._bytes_held.add(self, -len(letter.body))
            self._given_back.discard(letter.row)
            self._out.pop(letter.row, None)
        if self._takers and self._takers[0].left:
            self._let_go()

    def erase(self, keys: Collection[str], *, left: int) -> None:
        """Let go of the letters of these keys, whose rows are gone; ``left`` others are in the table.

        What is worked on ends as it will, and stores nothing of its letter.
        """
        for letter in [each for each in (*self._waiting, *self._out.values()) if each.key in keys]:
            letter.gone = letter.erased = True
            self._bytes_held.add(self, -len(letter.body))
            self._given_back.discard(letter.row)
            self._out.pop(letter.row, None)
        self._waiting = deque(letter for letter in self._waiting if not letter.erased)
        self.count = left

    def forget(self) -> None:
        """Empty the memory: every letter not settled is lost to whoever holds it, and is read anew."""
        for letter in self._out.values():
            letter.given_back = True
        self._given_back.update(self._out)
        self._waiting.clear()
        self._out.clear()
        self._bytes_held.add(self, -self._bytes_held.of(self))
        self.read_to = 0
        self._more, self._next_size = True, 1
        self.loading = False
        self.visit += 1

    # ── takers ────────────────────────────────────────────────────────────────────────────────────────────

    def join(self) -> Taker:
        """Add a taker; it gets letters once those before it have left."""
        taker = Taker(self)
        self._takers.append(taker)
        return taker

    def leave(self, taker: Taker) -> None:
        """Give back what ``taker`` has not settled; the next one begins when no change of it is under way."""
        taker.left = True
        taker.end()
        if taker is self._takers[0]:
            self._let_go()
        else:
            self._takers.remove(taker)

    def _let_go(self) -> None:
        """Pass the box on, once no change is under way: its letter might come back, before all later ones."""
        for letter in self._out.values():
            letter.given_back = not letter.busy
        if any(letter.busy for letter in self._out.values()):
            return
        del self._takers[0]
        self.forget()

    def next_for(self, taker: Taker) -> EmbeddedLetter | None:
        """Hand out the next letter; None where there is none for this taker."""
        if not self._waiting or taker is not self._takers[0]:
            return None
        letter = self._waiting.popleft()
        self._out[letter.row] = letter
        return letter


class Taker(LetterFeed):
    """The letters of a box, as long as its context is open."""

    def __init__(self, box: Buffer) -> None:
        super().__init__()
        self._box = box
        self.left = False

    def next(self) -> EmbeddedLetter | None:
        """Take out the next letter of the box, if it is this taker's turn."""
        return self._box.next_for(self)
