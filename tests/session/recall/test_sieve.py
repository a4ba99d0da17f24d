"""Which files a search over all chats looks into: every one that recall would find something in."""

from __future__ import annotations

import json

import pytest

from session.recall.sieve import Sieve


def line(text: str, *, raw: bool = True) -> bytes:
    return json.dumps({"role": "user", "content": text}, ensure_ascii=not raw).encode()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("delivery", "About the DELIVERIES of May"),
        ("Where did he go?", "he went home"),
        ("cafe", "im Café"),
        ("café", "the cafe"),
        ("Straße", "STRASSE"),
        ("東京", "東京へ"),
        ("привет", "Привет!"),
        ("x", "an x here"),
    ],
)
def test_what_may_be_found_passes(question: str, text: str) -> None:
    assert Sieve(question).may_hold(line(text))


def test_what_cannot_be_found_is_held_back() -> None:
    assert not Sieve("delivery").may_hold(line("nothing of the kind"))
    assert not Sieve("delivery").may_hold(line("schön"))


@pytest.mark.parametrize("question", ["on March 9th", "in March", "2026-03", "3月9日"])
def test_what_was_said_on_the_day_of_the_question_passes(question: str) -> None:
    """Though it holds no word of it; another month does not where the question has no word but these."""
    assert Sieve(question).may_hold(b'{"content":"yes","timestamp":"2026-03-09T10:00:00"}')
    assert not Sieve("in March").may_hold(b'{"content":"yes","timestamp":"2026-04-09T10:00:00"}')


def test_escaped_letters_are_looked_into() -> None:
    """A writer that escapes what is not ASCII hides a word from its bytes."""
    assert Sieve("schoen").may_hold(line("schön", raw=False))


def test_a_question_of_no_ascii_letter_lets_all_pass() -> None:
    assert Sieve("東京").lets_all_pass
    assert not Sieve("tokyo").lets_all_pass
