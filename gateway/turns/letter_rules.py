"""The figures that decide over letters."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.turns.batching import QueueRules
from gateway.turns.policy import FENCED_TRIES


@dataclass(frozen=True, slots=True)
class LetterRules:
    """The figures that decide over letters, of ``[limits]`` and our own."""

    concurrent_turns: int = 64
    attempts: int = 3
    model_tries: int = 5
    outage_hours: float = 24
    pending_per_chat: int = 50
    flood_per_chat: int = 5000
    idle_hours: float = 0
    fenced_tries: int = FENCED_TRIES
    queue: QueueRules = field(default_factory=QueueRules)
