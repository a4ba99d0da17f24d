"""Where a conversation may be cut: before a user's line, and before an answer when no call waits."""

from __future__ import annotations

from typing import Any

import pytest

from session.compaction.cuts import call_ids, legal_cuts, nearest_cut, next_cut

USER: dict[str, Any] = {"role": "user"}
SAID: dict[str, Any] = {"role": "assistant"}
NOTE: dict[str, Any] = {"role": "system"}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": id_} for id_ in ids]}


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_}


@pytest.mark.parametrize(
    ("lines", "cuts"),
    [
        ([], []),
        ([USER, SAID, NOTE, USER, SAID], [0, 1, 3, 4]),
        ([USER, calling("a", "b"), result("a"), result("b"), SAID], [0, 1, 4]),
        # One result is missing: the next answer is no place, the one behind it is.
        ([USER, calling("a", "b"), result("b"), SAID, SAID], [0, 1, 4]),
        # Nobody waits for it beyond a user's line.
        ([calling("a"), USER, SAID], [0, 1, 2]),
        # A result that was not asked for takes nothing away, and neither does a record.
        ([USER, calling("a"), result("x"), NOTE, result("a"), calling("b"), result("b")], [0, 1, 5]),
        ([NOTE, result("a")], []),
    ],
)
def test_the_places_where_a_part_may_begin(lines: list[dict[str, Any]], cuts: list[int]) -> None:
    assert list(legal_cuts(lines)) == cuts


def test_the_next_and_the_nearest_place() -> None:
    """The nearest is the next one; behind the last one it is that."""
    lines = [NOTE, USER, calling("a"), result("a"), USER, NOTE]

    assert [next_cut(lines, at) for at in range(6)] == [1, 1, 2, 4, 4, None]
    assert [nearest_cut(lines, at) for at in range(6)] == [1, 1, 2, 4, 4, 4]
    assert (next_cut([NOTE], 0), nearest_cut([NOTE], 1), nearest_cut([], 3)) == (None, 0, 0)


def test_whatever_stands_in_the_field_only_calls_are_read() -> None:
    assert call_ids(calling("a", "b")) == ["a", "b"]
    assert call_ids({"tool_calls": ["x", None, {"id": 3}, {}]}) == ["3", "None"]
    for odd in (None, "calls", {"id": "a"}):
        assert call_ids({"tool_calls": odd}) == []
