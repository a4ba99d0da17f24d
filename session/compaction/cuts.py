"""Where a conversation may be cut, so that no tool result loses the call it answers; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def legal_cuts(lines: Sequence[Line]) -> Iterator[int]:
    """Yield the places at which a new part may begin, in order.

    These are user lines, and assistant lines before which every call has its result; never a tool result, nor
    one of our own records. A call whose result was lost stops waiting at the next assistant or user line.
    """
    pending: set[str] = set()
    for at, line in enumerate(lines):
        role = line.get("role")
        if role == "user":
            pending.clear()
            yield at
        elif role == "assistant":
            if not pending:
                yield at
            pending = set(call_ids(line))
        elif role == "tool":
            pending.discard(str(line.get("tool_call_id")))


def nearest_cut(lines: Sequence[Line], index: int) -> int:
    """Return the first legal cut at ``index`` or after it, else the last one before it, else 0."""
    before = 0
    for at in legal_cuts(lines):
        if at >= index:
            return at
        before = at
    return before


def call_ids(line: Line) -> list[str]:
    """Return the ids of the tool calls of an assistant line, whatever else stands in the field."""
    calls = line.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [str(call.get("id")) for call in calls if isinstance(call, Mapping)]
