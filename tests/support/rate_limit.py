"""A rate limit for the model server: one request passes per second."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.support.model_replies import Reply, Seen

RETRY_AFTER_S = 1.0


@dataclass
class RateLimit:
    """Set as ``server.chooses``; ``asked`` has each request's time and text, and whether it passed."""

    asked: list[tuple[float, str, bool]] = field(default_factory=list)
    _passed_at: float = 0.0

    def __call__(self, seen: Seen) -> Reply | None:
        now = time.monotonic()
        passes = now - self._passed_at >= RETRY_AFTER_S
        self.asked.append((now, seen.text, passes))
        if passes:
            self._passed_at = now
            return None
        return Reply(status=429, headers={"retry-after": f"{RETRY_AFTER_S:g}"})
