"""What differs between a recording and its replay is listed; what is the clock's doing is no difference."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.recording.comparing import Report
from gateway.recording.letter import Letter, Recording
from gateway.recording.outcome import Outcome, outcome_of
from gateway.recording.replaying import Played

AT = datetime(2026, 11, 27, 8, tzinfo=UTC)


def outcome(word: str = "answered", began_s: float = 0, **more: float) -> Outcome:
    began = AT + timedelta(seconds=began_s)
    return Outcome(word, began, began + timedelta(seconds=1), **more)  # type: ignore[arg-type]


def played(
    text: str, then: Outcome, now: Outcome, *, key: str = "telegram:1", reply: str = "", fault: str = ""
) -> Played:
    return Played(Letter(key, text, AT, text, then, reply="yes"), f"web:{text}", now, reply, fault)


def report(*of: Played, masked: bool = False) -> Report:
    return Report(Recording(AT, AT, [each.letter for each in of], masked=masked), of)


def test_nothing_differs() -> None:
    found = report(
        played("a", outcome(), outcome(began_s=90), reply="yes"),
        played("b", outcome(began_s=5), outcome("together", began_s=95), reply="no"),
    )

    assert found.is_same
    assert found.document()["replies"] == {"same": 1, "other": 1}
    assert "replies: 1 word for word the same, 1 in other words" in [*found.lines()]


@pytest.mark.parametrize("now", ["notice", "silent", "stopped", "withdrawn", "cleared", "parked", "open"])
def test_another_outcome_is_listed(now: str) -> None:
    found = report(played("a", outcome(), outcome(now)))

    assert not found.is_same
    assert [(row["recorded"], row["replayed"]) for row in found.outcomes] == [("answered", now)]
    assert f"  telegram:1 a: answered → {now}" in [*found.lines()]


def test_a_letter_that_was_not_taken_is_listed_with_its_reason() -> None:
    found = report(played("a", outcome(), Outcome("open"), fault="too long"))

    assert [(row["replayed"], row["why"]) for row in found.outcomes] == [("refused", "too long")]


def test_what_had_no_end_when_it_was_recorded_may_have_any() -> None:
    assert report(played("a", Outcome("open"), outcome())).is_same


def test_another_order_within_a_chat_is_listed() -> None:
    of = [
        played("a", outcome(began_s=1), outcome(began_s=12)),
        played("b", outcome(began_s=2), outcome(began_s=11)),
        played("/stop", outcome(began_s=3), outcome(began_s=1)),
        played("c", outcome(began_s=0), outcome(began_s=50), key="telegram:2"),
    ]

    found = report(*of)

    assert found.order == [{"key": "telegram:1", "recorded": ["a", "b"], "replayed": ["b", "a"]}]
    assert not found.is_same
    assert report(*of[1:]).is_same


def test_what_takes_far_more_tokens_stands_out_the_worst_first() -> None:
    cheap = outcome(prompt=300, completion=100)
    found = report(
        played("a", cheap, outcome(prompt=1200, completion=100)),
        played("b", cheap, outcome(prompt=600, completion=150)),
        played("c", cheap, outcome(prompt=9000, completion=1, cost_usd=0.5)),
    )

    assert [row["letter"] for row in found.dearer] == ["c", "a"]
    assert found.document()["replayed"]["cost_usd"] == 0.5
    assert "prompt tokens: 900 recorded, 10,800 replayed" in [*found.lines()]
    assert "USD: 0.0000 recorded, 0.5000 replayed" in [*found.lines()]
    assert found.is_same


def test_of_a_masked_one_no_words_are_compared() -> None:
    found = report(played("a", outcome(), outcome(), reply="yes"), masked=True)

    assert found.document()["replies"] == {"same": 0, "other": 0}
    assert not any("replies" in line for line in found.lines())


def step(name: str, at_s: int = 0, **fields: object) -> dict[str, object]:
    return {"step": name, "at": (AT + timedelta(seconds=at_s)).isoformat(), **fields}


def test_an_outcome_is_read_from_the_steps_of_a_life() -> None:
    steps = [
        step("accepted"),
        step("begun", 1),
        step("model", 2, prompt=10, completion=2, cost_usd=0.1),
        step("tool", 3),
        step("model", 4, prompt=20, completion=3, cost_usd=0.2),
        step("stored", 4),
        step("delivered", 5),
    ]

    found = outcome_of(steps)

    assert replace(found, cost_usd=round(found.cost_usd, 6)) == Outcome(
        "answered", AT + timedelta(seconds=1), AT + timedelta(seconds=4), 30, 5, 0.3, 1
    )
    assert outcome_of([*steps, step("archived", 9)]).word == "answered"
    assert outcome_of([*steps, step("withdrawn", 9)]).word == "withdrawn"
    assert outcome_of(steps[:2]) == Outcome("open", AT + timedelta(seconds=1))
    assert outcome_of([]) == Outcome("open")


def test_of_what_was_taken_back_later_the_answer_is_the_end() -> None:
    steps = [step("begun", 1), step("stored", 4), step("withdrawn", 90)]

    found = outcome_of(steps)

    assert (found.word, found.ended) == ("withdrawn", AT + timedelta(seconds=4))
    assert outcome_of([step("withdrawn", 90)]).ended == AT + timedelta(seconds=90)


def test_the_order_of_many_chats_is_compared_in_a_time_that_grows_with_the_letters() -> None:
    of = [played("a", outcome(), outcome(), key=f"telegram:{n}") for n in range(8000)]

    begun = time.thread_time()
    found = report(*of).order

    assert found == []
    assert time.thread_time() - begun < 2


def test_what_another_turn_cost_is_not_counted_twice() -> None:
    steps = [step("begun", 1, turn="a"), step("model", 2, prompt=10), step("stored", 2, turn="a")]

    assert outcome_of(steps) == Outcome("together", AT + timedelta(seconds=1), AT + timedelta(seconds=2))
