"""Which exchanges mode ``relevant`` sends, number by number."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from session.context.relevance import MAX_TEXT_CHARS, Relevance, chosen, comparable, compared
from session.transcript.history import before_turn, visible

RULES = Relevance()


def exchange(name: str, *, rounds: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """A question, so many calls with their results, an answer."""
    lines: list[dict[str, Any]] = [{"role": "user", "content": f"ask {name}", **fields}]
    for n in range(rounds):
        call = {"id": f"{name}{n}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        lines.append({"role": "assistant", "content": None, "tool_calls": [call], **fields})
        lines.append({"role": "tool", "content": "found", "tool_call_id": f"{name}{n}", **fields})
    return [*lines, {"role": "assistant", "content": f"tell {name}", **fields}]


def asked(older: list[dict[str, Any]], picked: list[int]) -> str:
    """Name the exchanges that were chosen by their letters."""
    return "".join(older[i]["content"][-1] for i in picked if older[i]["role"] == "user")


def near(**scores: float) -> dict[str, float]:
    return {f"ask {name}": score for name, score in scores.items()}


def test_the_newest_three_always_and_of_the_older_ones_the_near() -> None:
    """Far ones in the middle are left out, the order stays."""
    older = [line for name in "abcdef" for line in exchange(name)]

    assert asked(older, chosen(older, RULES, near(a=0.5, b=0.1, c=0.44))) == "adef"


def test_the_threshold_itself_is_near_enough() -> None:
    """0.45 is sent, a little less is not; a tenth below counts by configuration."""
    older = [line for name in "abcde" for line in exchange(name)]

    assert asked(older, chosen(older, RULES, near(a=0.45, b=0.4499))) == "acde"
    assert asked(older, chosen(older, Relevance(threshold=0.35), near(a=0.45, b=0.4499))) == "abcde"


def test_the_best_of_an_exchange_counts_and_its_tool_chain_goes_with_it() -> None:
    """The answer may be near where the question is not; calls and results are sent with both."""
    older = [*exchange("a", rounds=2), *[line for name in "bcd" for line in exchange(name)]]

    picked = chosen(older, RULES, {"tell a": 0.9})

    assert picked == list(range(len(older)))
    assert compared(older, RULES) == ["ask a", "tell a"]


def test_at_most_twenty_messages_the_nearest_first_none_torn() -> None:
    """What does not fit is left out whole; a smaller one that is less near may still fit."""
    older = [*exchange("a"), *exchange("b", rounds=6), *exchange("c", rounds=2)]
    older += [line for name in "xyz" for line in exchange(name)]

    assert asked(older, chosen(older, RULES, near(a=0.5, b=0.9, c=0.6))) == "bxyz"
    assert asked(older, chosen(older, RULES, near(a=0.5, b=0.6, c=0.9))) == "acxyz"


def test_the_newest_three_are_sent_over_every_limit() -> None:
    """Forty messages in one of them leave no room for older ones, and nothing of it is cut."""
    older = [*exchange("a"), *exchange("b", rounds=20), *exchange("c"), *exchange("d")]

    picked = chosen(older, RULES, near(a=0.9))

    assert picked == list(range(2, len(older)))


def test_candidates_are_the_last_thirty_messages() -> None:
    """An exchange that begins before them is left out, however near, and not even compared."""
    older = [line for name in "abcdefghijklmnop" for line in exchange(name)]
    scores = {f"ask {name}": 0.9 for name in "abcdefghijklmnop"}

    assert asked(older, chosen(older, Relevance(most=99), scores)) == "bcdefghijklmnop"
    assert asked(older, chosen(older, Relevance(candidates=29, most=99), scores)) == "cdefghijklmnop"
    assert "ask a" not in compared(older, RULES)
    assert len(compared(older, RULES)) == 24


@pytest.mark.parametrize(("rounds", "names"), [(0, "fghijklxyz"), (5, "klxyz"), (6, "lxyz"), (7, "xyz")])
def test_without_an_embedding_model_the_newest_that_fit(rounds: int, names: str) -> None:
    """The last twenty, cut to whole exchanges, without a gap behind the first that does not fit."""
    older = [line for name in "abcdefghijk" for line in exchange(name)]
    older += exchange("l", rounds=rounds)
    older += [line for name in "xyz" for line in exchange(name)]

    assert asked(older, chosen(older, RULES, None)) == names


def test_what_is_compared_is_short_and_once() -> None:
    """Long texts are cut, blank and equal ones and tool results are not compared."""
    long = [{"role": "user", "content": "x" * 9_000}, {"role": "assistant", "content": " \n"}]
    older = [*long, *exchange("a", rounds=1), *exchange("a"), *[m for n in "bcd" for m in exchange(n)]]

    assert compared(older, RULES) == ["ask a", "tell a", "x" * MAX_TEXT_CHARS]
    assert comparable([{"type": "text", "text": " hi "}]) == "hi"


def test_overlay_and_withdrawn_exchanges() -> None:
    """Only what may be sent is chosen from: after ``first_kept``, without what ``/undo`` took back."""
    names = "abcdefg"
    lines = [line for name in names for line in exchange(name)]
    lines.append({"role": "system", "kind": "overlay", "content": "gist", "first_kept": 2})
    lines += exchange("h")
    # Withdraws d to h.
    lines.append({"role": "system", "kind": "undo", "from": 6})
    lines += [line for name in "ijk" for line in exchange(name)]
    lines.append({"role": "user", "content": "new", "message_id": "m"})
    older = before_turn(lines, last_consolidated=0, running_id="m")
    rules = Relevance()

    sent = visible(
        lines,
        last_consolidated=0,
        running_id="m",
        select=partial(chosen, rules=rules, similarity=near(a=0.9, b=0.9, c=0.2, d=0.9)),
    )

    assert compared(older, rules) == ["ask c", "tell c", "ask b", "tell b"]
    assert sent[0]["content"].count("gist") == 1
    assert [message["content"][-1] for message in sent[1:] if message["role"] == "user"] == list("bijkw")
