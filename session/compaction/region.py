"""The part of a session that is sent as history, and the summary that stands for all before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from session.models.tokens import chars_of
from session.transcript.attachments import BESIDE_TEXT, with_references
from session.transcript.history import is_record, newest_overlay, sendable, start_of
from session.transcript.repair import plain_text

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Region:
    """The history of a session: its lines with their indexes, withdrawn ones and records left out.

    ``record`` is the overlay or ``compact`` line whose summary stands for what was before.
    """

    first: int
    lines: Sequence[tuple[int, Line]]
    record: Line | None

    @property
    def summary(self) -> str:
        """The text of the summary; empty where there is none."""
        return plain_text(self.record.get("content")).strip() if self.record is not None else ""

    def chars(self) -> list[int]:
        """Count the characters of each line that a model reads."""
        return [_chars(line) for _, line in self.lines]

    def tokens(self, chars_per_token: float) -> list[int]:
        """Estimate each line."""
        return [ceil(chars / chars_per_token) for chars in self.chars()]


def region(lines: Sequence[Line], *, start: int, history_start: int, opening: Line | None = None) -> Region:
    """Find what is sent of a session.

    Args:
        lines: the session's message lines from ``start`` to its end.
        start: index of ``lines[0]``; the history must not begin before it.
        history_start: where the history begins unless an overlay says so.
        opening: the ``compact`` line of the session, where it stands before ``start``.
    """
    record = newest_overlay(lines, start=start)
    if record is not None:
        first = int(record["first_kept"])
    else:
        first = start + start_of(lines, history_start - start)
        compacts = (line for line in reversed(lines) if is_record(line) and line["kind"] == "compact")
        record = next(compacts, opening)
    sent = [(i, line) for i, line in sendable(lines, start=start) if i >= first]
    return Region(first, sent, record)


def _chars(line: Line) -> int:
    chars = chars_of(line)
    if line["role"] == "user" and any(field in line for field in BESIDE_TEXT):
        chars += len(with_references("", line))
    return chars
