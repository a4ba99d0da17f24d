"""How often the turn of one message was begun and never ended, as the entries of its journal tell it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True)
class Tries:
    """The starts of one message's turn that were not struck out. Pure: grows entry by entry."""

    at: datetime
    # Of each start that was recorded: whether it ran alone.
    _begun: list[bool] = field(default_factory=list)
    _recorded: bool = False
    # The transcript held a line of the message at the first record: one start before that is not recorded.
    _held: bool = False
    _first_struck: bool = False

    @property
    def count(self) -> int:
        """How many starts there were, the unrecorded first one included."""
        return len(self._begun) + (1 if self._held and not self._first_struck else 0)

    @property
    def last_alone(self) -> bool:
        """Whether the newest start ran alone."""
        return bool(self._begun) and self._begun[-1]

    @property
    def only_first_struck(self) -> bool:
        """Whether an unrecorded first start is struck out already and nothing began since."""
        return not self._begun and self._first_struck

    def begin(self, *, held: bool, alone: bool, at: datetime) -> None:
        """Take in a start; ``held``: the transcript had a line of the message then."""
        self._held = self._held if self._recorded else held
        self._recorded = True
        self._begun.append(alone)
        self.at = at

    def strike(self, at: datetime) -> None:
        """Take the newest start out; where none is recorded, the unrecorded first one."""
        if self._begun:
            self._begun.pop()
        else:
            self._first_struck = True
        self.at = at
