"""The numbers in force for a conversation, and what its preset makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from session.compaction.presets import Numbers

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
