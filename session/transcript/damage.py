"""What stands in a transcript's file besides line 1 and message lines; pure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

_MAX_NOTED = 20


@dataclass(slots=True)
class Damage:
    """What stood in the file beside line 1 and message lines.

    Args:
        problems: the first lines whose bytes did not turn into an object in full, and why.
        unnamed: how many such lines there are besides.
        strays: of each other object that offsets count: how many messages stood before it.
        uncounted: how many other objects there are that no offset counts.
        nameless: how many of those have no ``_type`` either.
        heads: how many lines are a line 1.
        untidy: there was a byte order mark, a blank or NUL line, or line 1 was not the first.
    """

    problems: list[str] = field(default_factory=list)
    unnamed: int = 0
    strays: array[int] = field(default_factory=lambda: array("I"))
    uncounted: int = 0
    nameless: int = 0
    heads: int = 0
    untidy: bool = False

    def note(self, number: int, problem: str) -> None:
        """Record a damaged line by its number, from 1."""
        if len(self.problems) < _MAX_NOTED:
            self.problems.append(f"line {number}: {problem}")
        else:
            self.unnamed += 1
