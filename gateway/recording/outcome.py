"""What became of a message and what it cost, read from the steps of its life; pure, for both sides alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from session.transcript.line import read_time

Steps = Sequence[Mapping[str, Any]]
# Steps in which a message ends, with the word for it.
_ENDS: Final = {
    "stored": "answered",
    "archived": "answered",
    "notice": "notice",
    "silent": "silent",
    "handed on": "silent",
    "stopped": "stopped",
    "withdrawn": "withdrawn",
    "cleared": "cleared",
    "parked": "parked",
}
# The answer of another message's turn serves it, too.
TOGETHER: Final = "together"
OPEN: Final = "open"
WORDS: Final = frozenset({*_ENDS.values(), TOGETHER, OPEN})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a message ended.

    Args:
        word: one of ``WORDS``; ``open``: no end of it is known.
        began: when its turn began, or its command was answered; None: neither is known.
        ended: when its end was stored; of one that was taken back later, when it was answered.
        prompt: tokens of all model calls of its turn, those of another message's turn not among them.
        completion: as ``prompt``, of what the model wrote.
        cost_usd: as ``prompt``, their price.
        tools: how many calls of tools ended in its turn.
    """

    word: str
    began: datetime | None = None
    ended: datetime | None = None
    prompt: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    tools: int = 0


def outcome_of(steps: Steps) -> Outcome:
    """Read how a message ended from its steps in order of time, as ``trace`` gives them."""
    ends = [step for step in steps if step.get("step") in _ENDS]
    # An end of the session says of its messages what the lines in the archive say better.
    told = [step for step in ends if step["step"] != "archived"] or ends
    began = next((step for step in steps if step.get("step") == "begun"), told[0] if told else {})
    if not told:
        return _spent(steps, OPEN, began, {})
    last = told[-1]
    word = _ENDS[last["step"]]
    # What came until it was taken back was written by somebody who had read the answer.
    ended = next((step for step in reversed(told) if step["step"] != "withdrawn"), last)
    return _spent(steps, TOGETHER if word == "answered" and last.get("turn") else word, began, ended)


def _spent(steps: Steps, word: str, began: Mapping[str, Any], ended: Mapping[str, Any]) -> Outcome:
    times = read_time(began.get("at")), read_time(ended.get("at"))
    if word == TOGETHER:
        return Outcome(word, *times)
    calls = [step for step in steps if step.get("step") == "model" and not step.get("turn")]
    return Outcome(
        word,
        *times,
        sum(int(step.get("prompt") or 0) for step in calls),
        sum(int(step.get("completion") or 0) for step in calls),
        sum(float(step.get("cost_usd") or 0) for step in calls),
        sum(step.get("step") == "tool" and not step.get("turn") for step in steps),
    )
