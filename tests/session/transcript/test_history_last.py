"""``history.last`` counts the stored messages beside the running turn, as ``get_history`` of nanobot does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from session.transcript.history import HistoryWindow, visible

Line = dict[str, Any]


def exchange(number: int) -> list[Line]:
    return [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"}]


def tool_exchange(number: int) -> list[Line]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"q{number}"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": f"c{number}", "name": "ls"},
        {"role": "assistant", "content": f"a{number}"},
    ]


def running(*rounds: int) -> list[Line]:
    lines: list[Line] = [{"role": "user", "content": "new", "message_id": "m"}]
    for number in rounds:
        lines += tool_exchange(number)[1:3]
    return lines


def sent(stored: Sequence[Line], turn: Sequence[Line], last: int) -> list[Line]:
    return visible(
        [*stored, *turn], last_consolidated=0, running_id="m", keep_results=1_000, window=HistoryWindow(last)
    )


def get_history(messages: Sequence[Line], last: int) -> list[Line]:
    """The rule of nanobot's ``Session.get_history``: the last so many, from the first user message on."""
    cut = list(messages)[-last:]
    first = next((at for at, message in enumerate(cut) if message["role"] == "user"), len(cut))
    return cut[first:]


@pytest.mark.parametrize("last", [12, 50])
@pytest.mark.parametrize("rounds", [0, 1, 9])
def test_so_many_stored_messages_go_along_however_long_the_running_turn_is(last: int, rounds: int) -> None:
    """12 are 12 and 50 are 50, and the turn stands whole behind them."""
    stored = [line for number in range(40) for line in exchange(number)]
    turn = running(*range(100, 100 + rounds))

    shown = sent(stored, turn, last)

    assert [line["content"] for line in shown[:last]] == [line["content"] for line in stored[-last:]]
    assert len(shown) == last + len(turn)


@pytest.mark.parametrize("last", range(1, 45))
def test_the_view_is_the_one_of_nanobot(last: int) -> None:
    """Wherever the cut falls, into a chain of tools too."""
    stored = [line for number in range(12) for line in (tool_exchange if number % 3 else exchange)(number)]

    shown = sent(stored, running(), last)

    assert [(line["role"], line["content"] or "") for line in shown[:-1]] == [
        (line["role"], line["content"]) for line in get_history(stored, last)
    ]
    assert shown[-1]["content"] == "new"


def test_records_are_not_counted() -> None:
    stored = [line for number in range(10) for line in exchange(number)]
    stored.insert(19, {"role": "system", "kind": "note", "edits": "x", "content": "e"})

    assert [line["content"] for line in sent(stored, running(), 4)] == ["q8", "a8", "q9", "a9", "new"]
