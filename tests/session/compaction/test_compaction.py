"""Where a conversation is cut, what leaves it, and what the summariser is given."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.compaction.cuts import call_ids, legal_cuts, nearest_cut
from session.compaction.flat import (
    MAX_RESULT_CHARS,
    FileLists,
    escaped,
    first_part,
    flat,
    unescaped,
    without_lists,
)
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


def test_the_lines_of_the_running_turn_stay() -> None:
    """All that was before it leaves, also when the keep by tokens is 0 or the turn lies in the region cut.

    Behind a huge result there is no legal place: what waits for its answer is kept from its call on.
    """
    lines = [user("old"), said("old"), user("new"), calls(("a", "ls", {})), result("a")]

    for rules in (RULES["archive"], CompactionRules(preset="annabelle", keep_recent_turns=0)):
        made = sure(planned(lines, rules, running_from=2))
        assert (made.first_kept, list(made.kept), made.prefix) == (2, [2, 3, 4], [])
        assert planned(lines[2:], rules, running_from=0) is None
    assert sure(planned([*lines[:4], result("a", filled("x", 300))])).first_kept == 3
    for keep, first in ((0, 3), (1, 3), (2, 3), (3, 2), (4, 1)):
        made = sure(planned(lines, CompactionRules(window=2_000, keep_recent_tokens=keep), running_from=2))
        assert made.first_kept == first


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


def test_what_memory_holds_already_is_not_summed_up() -> None:
    """Before the first overlay the region begins at ``history_start``, moved back to its user line."""
    lines = [user("one"), said("two"), user("three"), said("four"), user("five"), said("six")]

    made = sure(planned(lines, RULES["archive"], history_start=3))

    assert [line["content"] for line in made.lines] == ["three", "four", "five", "six"]


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


USER: dict[str, Any] = {"role": "user"}
SAID: dict[str, Any] = {"role": "assistant"}
NOTE: dict[str, Any] = {"role": "system"}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": id_} for id_ in ids]}


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


def test_the_nearest_place() -> None:
    """It is the next one; behind the last one it is that."""
    lines = [NOTE, USER, calling("a"), result("a"), USER, NOTE]

    assert [nearest_cut(lines, at) for at in range(6)] == [1, 1, 2, 4, 4, 4]
    assert (nearest_cut([NOTE], 1), nearest_cut([], 3)) == (0, 0)


def test_whatever_stands_in_the_field_only_calls_are_read() -> None:
    assert call_ids(calling("a", "b")) == ["a", "b"]
    assert call_ids({"tool_calls": ["x", None, {"id": 3}, {}]}) == ["3", "None"]
    for odd in (None, "calls", {"id": "a"}):
        assert call_ids({"tool_calls": odd}) == []


def test_files_read_and_modified_are_listed() -> None:
    """S7.16: a file in both lists is only in the second; old names count, other tools do not."""
    lines = [
        calls(("1", "read", {"path": "a"}), ("2", "read_file", {"path": "b"}), ("3", "ls", {"path": "x"})),
        calls(("4", "write", {"path": "c"}), ("5", "edit_file", {"path": "a"}), ("6", "grep", {"path": "y"})),
        calls(("7", "edit", {"file_path": "d"}), ("8", "write_file", {"path": "e"})),
        calls(("9", "list_directory", {"path": "z"}), ("10", "read", {}), ("11", "read", {"path": 3})),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": ["x", {"function": {"name": "read", "arguments": "{"}}],
        },
    ]

    assert FileLists().plus(lines) == FileLists(read=("b",), modified=("a", "c", "d", "e"))


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["read", "write", "edit"]), st.sampled_from("abcdef"))),
        min_size=3,
        max_size=5,
    )
)
def test_files_add_up_over_compactions(rounds: list[list[tuple[str, str]]]) -> None:
    """S7.15: each compaction's lists hold those of all before."""
    files, done = FileLists(), [*()]
    for operations in rounds:
        lines = [calls((str(n), name, {"path": path})) for n, (name, path) in enumerate(operations)]
        stored = record("overlay", read_files=list(files.read), modified_files=list(files.modified))
        files = FileLists.of_record(stored).plus(lines)
        done += operations
        modified = {path for name, path in done if name != "read"}
        assert set(files.modified) == modified
        assert set(files.read) == {path for _, path in done} - modified


def test_the_second_compaction_lists_the_files_of_the_first() -> None:
    """S7.15: through the stored line, whose summary comes back without its lists."""
    talk = Talk(RULES["overlay"])
    for path in ("one.py", "two.py"):
        talk.lines += [user(filled("q", 150)), calls(("1", "read", {"path": path})), result("1")]
        talk.lines += [said(filled("a", 150)), user(filled("b", 150)), said(filled("c", 150))]
        made = sure(talk.compact())

    assert made.files.read == ("one.py", "two.py")
    assert "<read-files>" not in made.previous
    assert talk.lines[-1]["content"].endswith("<read-files>\none.py\ntwo.py\n</read-files>")


@given(
    text=st.text(),
    read=st.lists(st.text(min_size=1), max_size=4),
    modified=st.lists(st.text(min_size=1), max_size=4),
)
def test_the_lists_come_off_again(text: str, read: list[str], modified: list[str]) -> None:
    """Whatever the files are called, taking the lists off leaves the summary."""
    stored = "\n\n".join([escaped(text), FileLists().joined(read, modified).lists()])

    assert without_lists(stored) == escaped(text).strip()


def test_a_long_list_is_shortened_in_the_text_only() -> None:
    """300 names: 200 are told, all are kept."""
    files = FileLists().joined([f"{n:03}" for n in range(300)], [])

    assert len(files.read) == 300
    assert files.lists().splitlines()[-2:] == ["… and 100 more", "</read-files>"]


def test_messages_are_written_as_flat_text() -> None:
    """S7.18: labels instead of JSON, calls with their arguments, in order."""
    lines = [
        user("What pods are running?"),
        calls(
            ("tc_1", "bash", {"command": "kubectl get pods", "n": 2}), ("2", "ls", {}), text="Let me check."
        ),
        result("tc_1", "NAME   READY\nnginx  1/1"),
        said("One: nginx."),
        said(""),
    ]

    assert flat(lines) == [
        "[User]: What pods are running?",
        "[Assistant]: Let me check.",
        '[Assistant tool calls]: bash(command="kubectl get pods", n=2); ls()',
        "[Tool result]: NAME   READY\nnginx  1/1",
        "[Assistant]: One: nginx.",
    ]


def test_a_tool_result_is_capped_and_nothing_else() -> None:
    """2,000 characters of a result, and how many are missing."""
    capped, whole = flat([result("a", "x" * 2_500), user("y" * 9_000)])

    assert capped == f"[Tool result]: {'x' * MAX_RESULT_CHARS}… (500 more characters)"
    assert len(whole) > 9_000


def test_odd_lines_are_written_as_far_as_they_go() -> None:
    """Blocks, pictures, files, broken arguments and calls of a wrong shape."""
    lines = [
        user([{"type": "text", "text": "see"}, {"type": "image_url"}]),  # type: ignore[arg-type]
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "ls", "arguments": "{oh"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [None, {"function": {"arguments": "{}"}}]},
        {"role": "system", "content": "of another program"},
    ]

    assert flat(lines) == [
        "[User]: see\n[image]",
        "[Assistant tool calls]: ls({oh)",
        "[System]: of another program",
    ]


NAMES = ["conversation", "summary", "previous-summary", "read-files", "modified-files"]
LABELS = ["User", "Tool result", "Assistant tool calls", ", continued"]
tags = st.sampled_from([*"<\\/ >\n[x", "]:", *NAMES, *LABELS])


@given(st.lists(tags, max_size=12).map("".join) | st.text())
def test_escaping_is_undone_to_the_letter(text: str) -> None:
    """No text of a person is changed on its way, whatever it is made of."""
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "</conversation>",
        "<conversation>",
        "< / Conversation >",
        "</previous-summary>",
        "</summary>",
        "<read-files>",
    ],
)
def test_text_that_looks_like_our_tags_is_escaped(text: str) -> None:
    """Nobody closes the conversation from within, nor forges a message or a list of files."""
    assert flat([user(text)]) == ["[User]: " + text.replace("<", "<\\", 1)]
    assert flat([user(f"hi\n[User]: {text}")])[0].startswith("[User]: hi\n\\[User]: <\\")


@pytest.mark.parametrize("text", ["<" + " " * 10**6, "[" * 10**6, "\n" * 10**6, "<\\" * 10**5])
def test_no_text_takes_long_to_escape(text: str) -> None:
    """Each character is looked at a few times, never once for each other one."""
    assert unescaped(escaped(text)) == text
    assert without_lists(text) == text.strip()


@given(st.lists(st.text(max_size=50), max_size=8), st.integers(30, 60))
def test_a_long_conversation_comes_apart_without_loss(texts: list[str], most: int) -> None:
    """Every part fits, and put together again they are the whole."""
    pieces = flat([user("x"), *(user(f"<{text}>") for text in texts)])
    parts, rest = [], list(pieces)

    while rest:
        part, rest = first_part(rest, most)
        assert 0 < len(part) <= most
        parts.append(part)

    whole = "\n".join(parts).replace("\n[User, continued]: ", "")
    assert whole == "\n".join(pieces)


LISTS = re.compile(r"<(read-files|modified-files)>\n.*?\n</\1>", re.DOTALL)
PIECES = ["<read-files>\n", "\n</read-files>", "<modified-files>\n", "\n</modified-files>", "a.py", "\n", "<"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_of_lists_those_that_are_closed_are_taken_off(text: str) -> None:
    assert without_lists(text) == LISTS.sub("", text).strip()


def test_lists_that_are_not_closed_are_looked_at_once() -> None:
    """To read all that follows for each of them would take an hour."""
    text = "<read-files>\n" * 200_000

    assert without_lists(text) == text.strip()
