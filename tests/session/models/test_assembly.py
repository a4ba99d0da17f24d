"""An answer that is put together from the pieces of a stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from session.models.assembly import Assembly


def piece(text: str) -> Any:
    delta = SimpleNamespace(content=text)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a \ud83d", "\ude00 b"], ["a ", "😀 b"]),
        (["\ud83d", "\ude00"], ["", "😀"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["a", "\ude00b"], ["a", "\ufffdb"]),
        (["a\ud83d", "\ud83d", "\ude00"], ["a", "\ufffd", "😀"]),
        (["😀", "ü"], ["😀", "ü"]),
    ],
)
def test_a_character_that_was_cut_in_two_is_shown_whole(pieces: list[str], shown: list[str]) -> None:
    answer = Assembly()

    assert ascii([answer.add(piece(text)) for text in pieces]) == ascii(shown)
    assert ascii(answer.answer(0.0).text) == ascii("".join(shown))


def test_half_a_character_at_the_end_is_told() -> None:
    answer = Assembly()

    assert ascii(answer.add(piece("a\ud83d"))) == ascii("a")
    assert ascii(answer.answer(0.0).text) == ascii("a\ufffd")
