"""Which answers of the model that sums up are believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.compaction.audit import ALWAYS_CHARS, audited, most_chars
from session.compaction.rules import CompactionRules
from session.errors import BadAnswer, NotCompacted
from session.models.model import Answer, ToolCall
from session.transcript.history import summary_text
from tests.contracts.models import Script
from tests.session.compaction_talk import STRUCTURED, record, said, user
from tests.session.summary_asking import LONG, PAGE, PROSE, WIDE, form, leaving, summarised
from tests.support.guarantee import guarantee

# -- the audit -------------------------------------------------------------------------------------------

CALL = Answer(STRUCTURED, tool_calls=[ToolCall("1", "read", "{}")], finish="tool_calls")


@guarantee("sessions", "A summary that fails its validation changes nothing.")
@pytest.mark.parametrize(
    "answer",
    [
        Answer(""),
        Answer(" \n "),
        Answer("<think>What now?</think>"),
        Answer(PAGE),
        Answer('{"error": {"message": "overloaded"}}'),
        CALL,
        Answer(STRUCTURED, finish="length"),
        Answer(STRUCTURED + "x" * 3_000),
        Answer(STRUCTURED.replace("## Goal", "Goal")),
        Answer(STRUCTURED.replace("## Next Steps", "## What next")),
        Answer("A trip by train was booked."),
    ],
)
async def test_an_answer_that_cannot_stand_for_the_conversation_is_refused(answer: Answer) -> None:
    """Empty, an error page, with tool calls, cut off, too long, or without the headings: nothing changes."""
    with pytest.raises(BadAnswer):
        audited(answer, new_chars=4_000, previous_chars=0, headings=True)

    with pytest.raises(NotCompacted) as caught:
        await summarised(Script([answer]), LONG, CompactionRules(keep_recent_tokens=0))
    assert caught.value.reason == "answer"


@pytest.mark.parametrize(
    "text",
    [
        STRUCTURED,
        f"<think>\nWell.\n</think>\n{STRUCTURED}\n",
        f"```markdown\n{STRUCTURED}\n```",
        f"<summary>\n{STRUCTURED}\n</summary>",
    ],
)
def test_summary_follows_the_structured_format(text: str) -> None:
    """S7.14: the headings (but Constraints) must be there; what some models wrap around them is taken off."""
    assert audited(Answer(text), new_chars=4_000, previous_chars=0, headings=True) == STRUCTURED


def test_headings_are_asked_for_where_the_form_has_them_only() -> None:
    """Prose and the beginning of a split turn are free."""
    assert audited(Answer(PROSE), new_chars=4_000, previous_chars=0, headings=False) == PROSE


@given(st.integers(0, 10**6), st.integers(0, 10**5))
def test_a_summary_is_a_third_shorter_than_what_it_stands_for(new: int, previous: int) -> None:
    """By 30 % where there is enough that is new, and never as long as it unless that is a few lines."""
    most = most_chars(new, previous)

    assert most <= max(new + previous, ALWAYS_CHARS)
    if new >= 1_000 and (not previous or new >= previous):
        assert most <= 0.7 * (new + previous)


@pytest.mark.parametrize(("chars", "believed"), [(2_812, True), (2_813, False)])
def test_thirty_percent(chars: int, believed: bool) -> None:
    """The boundary for an input of 4,018 characters."""
    answer = Answer("x" * chars)

    if believed:
        assert audited(answer, new_chars=4_018, previous_chars=0, headings=False)
    else:
        with pytest.raises(BadAnswer):
            audited(answer, new_chars=4_018, previous_chars=0, headings=False)


@pytest.mark.parametrize("preset", ["overlay", "archive"])
async def test_a_summary_as_long_as_what_leaves_changes_nothing(preset: str) -> None:
    """As both stand in the request: the words around a first one count, and the one that it replaces."""
    rules = replace(WIDE[preset], window=100_000)
    lines = [user("a" * 200), said("b" * 300)]
    frame = len(summary_text(""))
    first = form(preset)
    fits = Answer(first.ljust(500 - frame - 1, "."))
    over = Answer(first.ljust(500 - frame, "."))

    assert (await summarised(Script([fits]), lines, rules)).text == fits.text
    with pytest.raises(NotCompacted, match="no shorter"):
        await summarised(Script([over]), lines, rules)

    before = record("overlay", "s" * 300, first_kept=2)
    later = [*lines, before, user("c" * 250)]
    assert (await summarised(Script([Answer(first.ljust(549, "."))]), later, rules)).text
    with pytest.raises(NotCompacted, match="no shorter"):
        await summarised(Script([Answer(first.ljust(550, "."))]), later, rules)


@pytest.mark.parametrize(
    ("chars", "previous", "worth"), [(350, "", True), (250, "", False), (9, "s" * 900, False)]
)
def test_what_no_summary_can_be_shorter_than_is_not_worth_one(chars: int, previous: str, worth: bool) -> None:
    lines = [user("x" * 40), record("overlay", previous, first_kept=1)] if previous else []
    made = leaving([*lines, user("y" * chars)], WIDE["overlay"])

    assert made.worth == worth
