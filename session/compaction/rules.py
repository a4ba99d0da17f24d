"""The numbers by which a conversation is compacted: those of each preset, and those in force."""

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


Strategy = Literal["overlay", "archive", "rewrite"]


@dataclass(frozen=True, slots=True)
class CompactionRules(Numbers):
    """The numbers in force. The capped ones are read as ``reserve``, ``keep`` and ``output``.

    Args:
        window: tokens that the conversation's model takes.
        summary_window: tokens that the model takes which writes the summary; 0: the same.
        max_output_tokens: of one answer.
        history_messages: ``history.last``.
        history_tokens: ``history.budget_tokens``.
    """

    window: int = 128_000
    summary_window: int = 0
    max_output_tokens: int = 4_096
    history_messages: int = 50
    history_tokens: int = 50_000

    @property
    def strategy(self) -> Strategy:
        """What becomes of the transcript: a line is appended, or the session ends."""
        if self.preset == "archive":
            return "archive"
        return "rewrite" if self.preset == "annabelle" else "overlay"

    @property
    def structured(self) -> bool:
        """Whether the summary has headings and lists of files (else it is prose)."""
        return self.strategy == "overlay"

    @property
    def by_history(self) -> bool:
        """Whether the trigger looks at the history alone, so that it has to be measured."""
        return self.preset in ("annabelle", "budget")

    @property
    def reserve(self) -> int:
        """Tokens that stay free for the answer, at most a quarter of the window."""
        return min(self.reserve_tokens, self.window // 4)

    @property
    def keep(self) -> int:
        """Tokens of recent messages that stay, at most a quarter of the window."""
        return min(self.keep_recent_tokens, self.window // 4)

    @property
    def output(self) -> int:
        """Tokens of one answer, at most a quarter of the window."""
        return min(self.max_output_tokens, self.window // 4)

    @property
    def trigger(self) -> float:
        """Tokens over which a request (``overlay``, ``archive``) or a history (``budget``) is too long."""
        if self.preset == "overlay":
            return self.window - self.reserve
        return self.threshold * (self.history_tokens if self.preset == "budget" else self.window)

    def fits(self, request: int) -> bool:
        """Say whether a request of so many tokens leaves room for its answer."""
        return request <= self.window - self.output
