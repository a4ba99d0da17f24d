"""Whether a conversation has to be compacted, and whether that can wait until the turn has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, Literal

from session.compaction.plan import region
from session.compaction.rules import CompactionRules
from session.transcript.line import read_time

Line = Mapping[str, Any]
Due = Literal["no", "later", "now"]

# The answer to the request that is made now: it is one more message beside the next one.
COMING = 1


@dataclass(frozen=True, slots=True)
class Load:
    """What a history weighs, summaries not counted.

    ``since_s``: seconds since the last compaction, None where there was none.
    """

    tokens: int = 0
    messages: int = 0
    chars: int = 0
    turns: int = 0
    since_s: float | None = None


def measure(
    lines: Sequence[Line],
    *,
    start: int,
    history_start: int,
    rules: CompactionRules,
    now: datetime,
    opening: Line | None = None,
) -> Load:
    """Weigh the history of a session.

    The arguments are as of ``region``; ``now`` is aware.
    """
    live = region(lines, start=start, history_start=history_start, opening=opening)
    last = read_time(live.record.get("timestamp")) if live.record is not None else None
    sizes = live.chars()
    return Load(
        tokens=sum(ceil(size / rules.chars_per_token) for size in sizes),
        messages=len(sizes),
        chars=sum(sizes),
        turns=sum(1 for _, line in live.lines if line["role"] == "user"),
        since_s=None if last is None else (now - last).total_seconds(),
    )


def due(rules: CompactionRules, *, request: int, load: Load | None = None) -> Due:
    """Say whether to compact: ``no``, ``later`` (after the turn, in the background) or ``now``.

    ``request``: tokens of the request that is about to be made; ``load`` is needed where
    ``rules.by_history``.
    """
    if not _over(rules, request, load or Load()):
        return "no"
    return "later" if rules.preset != "archive" and rules.fits(request) else "now"


def _over(rules: CompactionRules, request: int, load: Load) -> bool:
    if rules.preset == "annabelle":
        rested = load.since_s is None or load.since_s >= rules.cooldown_s
        return load.chars > rules.max_chars and load.turns >= rules.min_turns and rested
    if rules.preset == "budget":
        return load.tokens > rules.trigger or load.messages + COMING > rules.history_messages
    return rules.preset != "off" and request > rules.trigger
