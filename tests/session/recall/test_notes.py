"""Notes are taken apart line by line and paragraph by paragraph, wherever these stand."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from session.recall.reading import Kind, of_notes

PARAGRAPH = re.compile(rb"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")
LINE = re.compile(rb"[^\n]*\S[^\n]*")
NOTES = st.lists(st.sampled_from(["a", "b c", "#", "\n", "\n\n", " ", "\t", "\r\n", "\x0b", "é"])).map(
    "".join
)


def of(notes: str, kind: Kind) -> list[tuple[int, int, int]]:
    return [(piece.seq, piece.at, piece.size) for piece in of_notes(notes.encode(), kind)]


@given(NOTES)
def test_each_line_has_its_number_and_its_place(notes: str) -> None:
    data = notes.encode()
    found = [each for each in LINE.finditer(data) if not each[0].strip().startswith(b"#")]

    assert of(notes, "memory") == [
        (data.count(b"\n", 0, each.start()) + 1, each.start(), len(each[0])) for each in found
    ]


@given(NOTES)
def test_each_paragraph_is_a_piece(notes: str) -> None:
    found = [each for each in PARAGRAPH.finditer(notes.encode()) if not each[0].strip().startswith(b"#")]

    assert of(notes, "history") == [
        (number, each.start(), len(each[0])) for number, each in enumerate(found, 1)
    ]


def test_a_line_of_spaces_is_looked_at_once() -> None:
    """From each of its characters on it would take an hour, in which no chat is answered."""
    for kind in ("memory", "history", "fact"):
        assert of_notes(b" " * 1_000_000 + b"\n", kind) == []
