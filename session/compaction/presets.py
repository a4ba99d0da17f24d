"""The numbers by which a conversation is compacted, as each preset has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from session.models.tokens import CHARS_PER_TOKEN

Preset = Literal["overlay", "archive", "annabelle", "budget", "off"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What may be set in the place of a preset's number. Which of them a preset looks at is its own affair.

    Args:
        preset: when to compact, what to keep, what the summary looks like.
        threshold: part of the window (``archive``) or of ``history.budget_tokens`` (``budget``).
        reserve_tokens: stay free for the answer, at most a quarter of the window.
        keep_recent_tokens: of recent messages that stay, at most a quarter of the window.
        cooldown_s: after a failure, and with ``annabelle`` also after a compaction.
        timeout_s: for one request of the summary.
    """

    preset: Preset = "overlay"
    threshold: float = 0.8
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    keep_recent_turns: int = 5
    max_chars: int = 20_000
    min_turns: int = 8
    cooldown_s: float = 120.0
    timeout_s: float = 30.0
    chars_per_token: float = CHARS_PER_TOKEN


def numbers_of(preset: Preset) -> Numbers:
    """Return the numbers that a preset sets."""
    if preset == "archive":
        return Numbers(preset, keep_recent_tokens=0, keep_recent_turns=0, chars_per_token=3.5)
    return Numbers(preset)
