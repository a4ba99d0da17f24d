"""The checker itself: what it wants of a chat that ends conversations and goes back to them."""

from __future__ import annotations

import pytest

from tests.disk.account import Message, sessions_of


def said(*words: str) -> list[Message]:
    return [Message(f"ann-{number:05d}", word, word) for number, word in enumerate(words, 1)]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["plain", "new", "plain"], [[1], [3]]),
        (["plain", "new", "new", "plain"], [[1], [4]]),
        (["resume", "plain"], [[2]]),
        (["plain", "new", "plain", "resume", "plain"], [[1, 5], [3]]),
        # The one that was left is the newest ended one now.
        (["plain", "new", "plain", "resume", "plain", "resume", "plain"], [[1, 5], [3, 7]]),
        # One in which nothing was said leaves nothing to go back to.
        (["plain", "new", "resume", "plain", "resume", "plain"], [[1, 4, 6]]),
    ],
)
def test_the_sessions_that_commands_make(words: list[str], wanted: list[list[int]]) -> None:
    assert sessions_of(said(*words)) == [[f"ann-{number:05d}" for number in ids] for ids in wanted]
