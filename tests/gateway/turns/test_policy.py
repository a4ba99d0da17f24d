"""Why a letter is parked: a class for whoever compares, a cause for the operator, a sentence for the chat."""

from __future__ import annotations

import pytest

from gateway.turns.policy import MAX_CAUSE_CHARS, park_verdict
from session.errors import (
    BadAnswer,
    ModelError,
    ModelRefused,
    RoundsExhausted,
    SessionError,
    StoreError,
    TurnTimeout,
)


def briefed(error: ModelError, brief: str) -> ModelError:
    error.brief = brief
    return error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            briefed(
                ModelRefused("x: no model 'y' for 'my message'", hint="check model.name"), "x: status 404"
            ),
            "refused: x: status 404; check model.name",
        ),
        (briefed(ModelRefused("x: my message is rude"), "x: status 422"), "refused: x: status 422"),
        (BadAnswer("the model answered nothing"), "bad_answer: the model answered nothing"),
        (TurnTimeout("the turn ran over 5 s"), "timeout: the turn ran over 5 s"),
        (StoreError("http://me:secret@host\nis away"), "failed: http://host is away"),
    ],
)
def test_the_cause_stands_behind_the_class(error: SessionError, shown: str) -> None:
    """On one line, with the cure, and never in the provider's words, which may quote the message."""
    assert park_verdict(error).shown == shown


def test_a_long_cause_is_cut_and_keeps_its_cure() -> None:
    """A header of the queue stays short, whatever came back."""
    shown = park_verdict(BadAnswer("x" * 10_000, hint="a cure")).shown

    assert len(shown) < MAX_CAUSE_CHARS + 30
    assert shown.endswith("…; a cure")


def test_too_many_tool_rounds_have_a_sentence_of_their_own() -> None:
    """The chat is not told that the answer was of no use: there was none."""
    tools, useless = park_verdict(RoundsExhausted("tools")), park_verdict(BadAnswer("nothing"))

    assert tools.reason == useless.reason == "bad_answer"
    assert "used its tools" in tools.said
    assert "no usable answer" in useless.said
