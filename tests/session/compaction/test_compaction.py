"""Where a conversation is cut, what leaves it, and what the summariser is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.compaction.cuts import legal_cuts
from session.compaction.files import FileLists
from session.compaction.flat import flat
from session.compaction.rules import CompactionRules
from tests.session.compaction_talk import (
    RULES,
    Talk,
    calls,
    exchanges,
    filled,
    planned,
    record,
    result,
    said,
    sure,
    user,
)
from tests.support.guarantee import guarantee

presets = pytest.mark.parametrize("preset", RULES)

# -- the cut ---------------------------------------------------------------------------------------------


@guarantee("sessions", "A compaction never separates a tool call from its result.")
@presets
@given(talk=exchanges, running=st.booleans())
def test_a_cut_never_parts_a_call_from_its_result(
    preset: str, talk: list[tuple[list[int], int]], running: bool
) -> None:
    """S7.13: what stays begins at a legal place, and no result is left without its call."""
    chat = Talk(RULES[preset])
    for sizes, tools in talk:
        chat.exchange(sizes, tools=tools)
    at = max(i for i, line in enumerate(chat.lines) if line["role"] == "user") if running else None

    made = planned(chat.lines, chat.rules, running_from=at)

    if made is not None:
        assert made.first_kept in {*legal_cuts(chat.lines), len(chat.lines)}
        kept = [chat.lines[i] for i in made.kept]
        asked = {call["id"] for line in kept for call in line.get("tool_calls", ())}
        assert {line["tool_call_id"] for line in kept if line["role"] == "tool"} == asked
        assert [*made.lines, *made.prefix, *kept] == chat.lines


def test_the_cut_is_the_first_legal_place_where_enough_is_kept() -> None:
    """Walking back, the line is found at which the keep is reached; a result moves the cut forward."""
    lines = [
        user(filled("old", 50)),
        said(filled("old", 50)),
        user(filled("look", 10)),
        calls(("a", "read", {"path": "x"})),
        result("a", filled("long", 80)),
        said(filled("seen", 30)),
        user(filled("and now", 30)),
        said(filled("this", 30)),
    ]

    assert sure(planned(lines)).first_kept == 5  # 30 + 30 + 30 are not enough, the result would be
    assert sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=90))).first_kept == 5
    assert sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=91))).first_kept == 5
    assert sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=171))).first_kept == 3
    assert sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=60))).first_kept == 6


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_at_a_compaction_record_the_cut_is_the_message_behind_it(role: str) -> None:
    """The record is never sent itself, so that a cut there would keep the same messages."""
    make = user if role == "user" else said
    lines = [user(filled("old", 50)), said(filled("old", 50)), user(filled("kept", 50))]
    lines += [said(filled("kept", 50)), record("overlay", "sum", first_kept=2)]
    lines += [make(filled("new", 60)), said(filled("newer", 60))]

    made = sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=120)))

    assert made.first_kept == 5
    assert [line["content"][:4] for line in (*made.lines, *made.prefix)] == ["kept", "kept"]
    assert made.previous == "sum"


def test_what_is_smaller_than_the_keep_stays() -> None:
    """Nothing leaves, so there is no plan; nor is there one for an empty session."""
    assert planned([user("hi"), said("hello")]) is None
    assert planned([]) is None
    assert planned([user("hi"), said("hello")], CompactionRules(preset="annabelle")) is None


def test_the_keep_is_at_most_a_quarter_of_the_window() -> None:
    """With a window of 400 tokens, 20,000 to keep become 100."""
    lines = [user(filled("a", 90)), said(filled("b", 90)), user(filled("c", 90)), said(filled("d", 90))]

    assert sure(planned(lines, CompactionRules(window=400))).first_kept == 2


def test_without_a_legal_place_behind_it_the_cut_is_the_last_one_before() -> None:
    """A turn that waits for its answer behind a huge result is kept from its call on."""
    lines = [user("old"), said("old"), user("new"), calls(("a", "read", {})), result("a", filled("x", 300))]

    assert sure(planned(lines)).first_kept == 3


def test_the_lines_of_the_running_turn_stay() -> None:
    """All that was before it leaves, also when the keep by tokens is 0 or the turn lies in the region cut."""
    lines = [user("old"), said("old"), user("new"), calls(("a", "ls", {})), result("a")]

    for rules in (RULES["archive"], CompactionRules(preset="annabelle", keep_recent_turns=0)):
        made = sure(planned(lines, rules, running_from=2))
        assert (made.first_kept, list(made.kept), made.prefix) == (2, [2, 3, 4], [])
        assert planned(lines[2:], rules, running_from=0) is None
    for keep, first in ((0, 3), (1, 3), (2, 3), (3, 2), (4, 1)):
        made = sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=keep), running_from=2))
        assert made.first_kept == first


def test_archive_keeps_nothing_else() -> None:
    """Between two turns everything leaves."""
    made = sure(planned([user("old"), said("old")], RULES["archive"]))

    assert (made.first_kept, list(made.kept), made.compacted_turns) == (2, [], 1)


def test_annabelle_keeps_whole_turns() -> None:
    """The last five turns stay, and the running one beside them."""
    lines = [line for n in range(7) for line in (user(f"q{n}"), said(f"a{n}"))]
    rules = CompactionRules(preset="annabelle")

    assert sure(planned(lines, rules)).first_kept == 4
    assert sure(planned([*lines, user("now")], rules, running_from=14)).first_kept == 4
    assert sure(planned(lines, rules)).compacted_turns == 2
    assert planned(lines[:10], rules) is None


def test_budget_keeps_at_most_half_of_the_messages() -> None:
    """60 short messages: 25 stay at most, though they are few tokens, and the first of them is legal."""
    lines = [line for n in range(30) for line in (user(f"q{n}"), said(f"a{n}"))]

    assert sure(planned(lines, CompactionRules(preset="budget"))).first_kept == 35
    lines[35:36] = [calls(("a", "ls", {})), result("a"), said("a17")]
    assert len(sure(planned(lines, CompactionRules(preset="budget"))).kept) <= 25


def test_where_the_provider_refuses_at_most_half_is_kept() -> None:
    """A window that is smaller than believed must not leave a chat without any way on."""
    lines = [line for n in range(4) for line in (user(filled(f"q{n}", 50)), said(filled(f"a{n}", 50)))]

    for preset in RULES:
        rules = CompactionRules(preset=preset)  # type: ignore[arg-type]
        made = sure(planned(lines, rules, forced=True))
        assert 4 <= made.first_kept <= 8


# -- split turns -----------------------------------------------------------------------------------------


def long_turn() -> list[dict[str, Any]]:
    steps = [
        (calls((f"c{n}", "read", {"path": f"f{n}"})), result(f"c{n}", filled(f"r{n}", 40))) for n in range(5)
    ]
    return [user("do it"), *(line for step in steps for line in step)]


@pytest.mark.parametrize("preset", ["overlay", "budget"])
def test_what_alone_is_most_of_a_request_that_was_too_long_leaves_it(preset: str) -> None:
    """A long paste with little behind it would stay whole, and the message be refused once more."""
    old = [(user if n % 2 == 0 else said)(filled(str(n), 10)) for n in range(8)]
    paste, running = [user(filled("paste", 900)), said("seen")], user("and now?")

    made = sure(planned([*old, *paste, running], RULES[preset], running_from=10, forced=True))

    assert made.first_kept == 9
    assert [*made.lines, *made.prefix] == [*old, paste[0]]


def test_a_turn_larger_than_the_keep_is_split() -> None:
    """What leaves of it is summed up apart from what was before; the same while it runs."""
    lines = [user("old"), said("old"), *long_turn()]

    for running in (None, 2):
        made = sure(planned(lines, running_from=running))
        assert made.first_kept in (7, 9)
        assert [line["content"] for line in made.lines] == ["old", "old"]
        assert made.prefix == lines[2 : made.first_kept]
        assert made.compacted_turns == 2


def test_the_rest_of_a_turn_that_was_split_before_goes_on_in_the_summary() -> None:
    """A running turn that is compacted twice: what leaves is added to the summary of its beginning."""
    lines = [*long_turn(), record("overlay", "the beginning", first_kept=5)]
    lines += [calls(("z", "read", {})), result("z", filled("z", 90)), said(filled("end", 90))]

    made = sure(planned(lines, running_from=0))

    assert made.prefix == []
    assert made.previous == "the beginning"
    assert made.lines == [line for line in lines[5 : made.first_kept] if line["role"] != "system"]


def test_a_small_turn_that_the_cut_meets_has_no_summary_of_its_own() -> None:
    """The question goes with all that leaves; only a turn larger than the keep is worth a request."""
    sizes = (90, 90, 40, 30, 40, 40)
    lines = [(user if n % 2 == 0 else said)(filled(str(n), size)) for n, size in enumerate(sizes)]

    small = sure(planned(lines))
    large = sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=40)))

    assert (small.first_kept, small.lines, small.prefix) == (3, lines[:3], [])
    assert (large.first_kept, large.lines, large.prefix) == (5, lines[:4], lines[4:5])


# -- what the summariser is given ------------------------------------------------------------------------


@guarantee("sessions", "Three compactions in a row lose nothing that was said.")
@presets
@given(rounds=st.lists(exchanges, min_size=3, max_size=4), forced=st.booleans())
def test_three_compactions_in_a_row_lose_nothing(
    preset: str, rounds: list[list[tuple[list[int], int]]], forced: bool
) -> None:
    """What is no longer sent was in the summariser's input, the region that the last one kept included."""
    chat = Talk(RULES[preset])

    for talk in rounds:
        for sizes, tools in talk:
            chat.exchange(sizes, tools=tools)
        before = chat.told()
        chat.compact(forced=forced)
        assert sorted(chat.told()) == sorted(before)

    assert len(chat.told()) == chat.facts


@given(before=exchanges, running=st.integers(1, 3), sizes=st.lists(st.integers(4, 300), max_size=6))
def test_compacting_in_the_middle_of_a_turn_loses_nothing(
    before: list[tuple[list[int], int]], running: int, sizes: list[int]
) -> None:
    """The running turn, split or not, is in the summariser's input or still sent."""
    for preset in RULES:
        chat = Talk(RULES[preset])
        for weights, tools in before:
            chat.exchange(weights, tools=tools)
        at = len(chat.lines)
        chat.exchange(sizes, tools=running)
        # The answer has not been written yet.
        chat.lines.pop()
        told = chat.told()

        chat.compact(running_from=at)
        assert sorted(chat.told()) == sorted(told)


def test_the_region_begins_where_the_last_one_ended() -> None:
    """After an overlay: at its ``first_kept``, so that the region it kept is summed up now."""
    lines = [user("one"), said("two"), user("three"), said("four")]
    lines += [record("overlay", "sum of one and two", first_kept=2), user("five"), said("six")]
    lines += [user(filled("seven", 100)), said(filled("eight", 100))]

    made = sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=150)))

    assert made.previous == "sum of one and two"
    assert [line["content"] for line in made.lines] == ["three", "four", "five", "six"]
    assert made.first_kept == 7
    assert made.tokens_before == 2 + 1 + 1 + 1
    assert made.compacted_turns == 2


def test_what_memory_holds_already_is_not_summed_up() -> None:
    """Before the first overlay the region begins at ``history_start``, moved back to its user line."""
    lines = [user("one"), said("two"), user("three"), said("four"), user("five"), said("six")]

    made = sure(planned(lines, RULES["archive"], history_start=3))

    assert [line["content"] for line in made.lines] == ["three", "four", "five", "six"]


def test_a_session_is_read_from_where_it_is_sent_only() -> None:
    """A caller that gives the lines from ``start`` on gets the same plan as one that gives them all."""
    chat = Talk(RULES["overlay"])
    for _ in range(8):
        chat.exchange([60, 60, 60, 60], tools=1)
    chat.compact()
    overlay = chat.lines[-1]
    chat.lines.append(record("undo", **{"from": len(chat.lines) - 1}))
    for _ in range(4):
        chat.exchange([60, 60, 60, 60], tools=1)
    first = overlay["first_kept"]

    assert planned(chat.lines[first:], chat.rules, start=first) == planned(chat.lines, chat.rules)


def test_the_summary_that_opened_the_session_is_the_previous_one() -> None:
    """The line of kind ``compact`` counts until an overlay comes, wherever its caller has it from."""
    opening = record("compact", "all before", read_files=["a"])
    lines = [opening, user("one"), said("two")]

    made = sure(planned(lines, RULES["archive"]))
    again = sure(planned(lines[1:], RULES["archive"], start=1, history_start=1, opening=opening))
    later = sure(planned([*lines, record("overlay", "newer", first_kept=1)], RULES["archive"]))

    assert made.previous == again.previous == "all before"
    assert made.files == again.files == FileLists(("a",))
    assert [line["content"] for line in made.lines] == ["one", "two"]
    assert later.previous == "newer"


def test_withdrawn_exchanges_and_records_are_left_out() -> None:
    """What ``/undo`` took back is neither summed up nor kept, and no record of ours is."""
    lines = [user("one"), said("two"), user("secret"), said("taken back"), record("undo", **{"from": 2})]
    lines += [record("note", "three"), user("four"), said("five")]

    made = sure(planned(lines, RULES["archive"]))

    assert flat(made.lines) == ["[User]: one", "[Assistant]: two", "[User]: four", "[Assistant]: five"]
