"""What was done for a conversation's memory at once, for the person who asked."""

from __future__ import annotations

from dataclasses import dataclass

from session.memory.notes import Notes


@dataclass(frozen=True, slots=True)
class Report:
    """What was done for one key at once; sizes are those of its scope's two files."""

    messages: int
    raw: int
    calls: int
    memory_bytes_before: int
    memory_bytes: int
    history_bytes_before: int
    history_bytes: int


def sizes(notes: Notes) -> tuple[int, int]:
    """Return how long both files of a scope are."""
    return len(notes.memory()), len(notes.history())
