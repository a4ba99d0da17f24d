"""What of a transcript a model sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from session.models.tokens import estimate, estimate_messages
from session.transcript.history import (
    SUMMARY_HEAD,
    HistoryWindow,
    before_turn,
    deleted,
    is_deletion,
    is_message,
    is_record,
    kept_from,
    newest_overlay,
    sendable,
    start_of,
    summary_message,
    visible,
)


def line(role: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "timestamp": "2026-01-01T00:00:00.000001+00:00", **fields}


def exchange(n: int, **fields: Any) -> list[dict[str, Any]]:
    return [line("user", f"q{n}", **fields), line("assistant", f"a{n}", **fields)]


def tool_round(call_id: str, text: str, **fields: Any) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    return [
        line("assistant", None, tool_calls=[call], **fields),
        line("tool", text, tool_call_id=call_id, name="ls", **fields),
    ]


def texts(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


def seen(lines: list[dict[str, Any]], consolidated: int = 0, running: str | None = None) -> list[Any]:
    return texts(visible(lines, last_consolidated=consolidated, running_id=running))


def test_only_the_five_fields_are_sent() -> None:
    """What we store beside a message stays at home."""
    lines = [line("user", "q", message_id="m1", sender={"id": "1"}), line("assistant", "a", usage={})]

    assert visible(lines, last_consolidated=0, running_id=None) == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]


@pytest.mark.parametrize(
    ("consolidated", "first"), [(0, "q0"), (2, "q1"), (3, "q1"), (99, "q0"), (-1, "q0"), (True, "q0")]
)
def test_history_begins_at_the_exchange_of_the_offset(consolidated: int, first: str) -> None:
    """An offset inside an exchange moves back to its user line; one that is no place counts as 0."""
    assert seen(exchange(0) + exchange(1), consolidated)[0] == first


def test_own_records_do_not_part_call_and_result() -> None:
    """A record that was written between a call and its result changes nothing for the model."""
    call, result = tool_round("a", "r")
    lines = [line("user", "q"), call, line("system", "", kind="note"), result]

    assert seen(lines) == ["q", None, "r"]


def test_newest_overlay_stands_for_what_came_before() -> None:
    """The history begins at ``first_kept`` with the summary, whatever the consolidation offset says."""
    lines = [*exchange(0), *exchange(1), line("system", "old", kind="overlay", first_kept=1)]
    lines += [*exchange(2), line("system", "the gist", kind="overlay", first_kept=2), *exchange(3)]

    sent = visible(lines, last_consolidated=8, running_id=None)

    assert sent[0] == {"role": "user", "content": f"{SUMMARY_HEAD}the gist\n</summary>"}
    assert texts(sent[1:]) == ["q1", "a1", "q2", "a2", "q3", "a3"]


def test_stored_pictures_are_named() -> None:
    """A picture of an earlier message is not sent again, its text is."""
    blocks = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,A"}}]

    assert seen([line("user", blocks)]) == ["x\n[image]"]


def test_what_is_no_message_does_not_count() -> None:
    """Records of other types and unknown roles are neither sent nor counted for the offset."""
    lines = [{"_type": "other", "role": "user", "content": "no"}, *exchange(0), line("function", "f")]

    assert seen([*lines, *exchange(1)], 2) == ["q1", "a1"]


def test_estimate_rounds_up() -> None:
    """Four characters are a token, and so is the rest."""
    assert (estimate(""), estimate("abcd"), estimate("abcde")) == (0, 1, 2)
    assert estimate_messages(tool_round("a", "12345678")) == 3


def note(of: str, text: str) -> dict[str, Any]:
    return {"role": "system", "kind": "note", "edits": of, "content": text}


def test_an_edited_message_is_sent_as_its_newest_note_says_with_its_files_and_fields() -> None:
    picture = {"attachments": [{"kind": "photo", "name": "a.jpg", "mime": "image/jpeg", "ref": "media/a"}]}
    lines = [
        line("user", "nine", message_id="m1"), line("assistant", "ok", message_id="m1"),
        line("user", "fourty", message_id="m2", **picture), line("assistant", "ok", message_id="m2"),
        note("m1", "ten"), note("m1", "eleven"), note("m2", "forty"), note("gone", "x"), note("m1", "twelve"),
    ]  # fmt: skip

    shown = visible(lines, last_consolidated=0, running_id=None)

    assert [message["content"] for message in shown][::2][0] == "twelve"
    assert str(shown[2]["content"]).startswith("forty")
    assert "a.jpg" in str(shown[2]["content"])
    assert len(shown) == 4


def test_an_edit_of_what_a_summary_stands_for_changes_nothing() -> None:
    overlay = {"role": "system", "kind": "overlay", "first_kept": 2, "content": "nine was said"}
    lines = [
        line("user", "nine", message_id="m1"), line("assistant", "ok", message_id="m1"),
        line("user", "more", message_id="m2"), line("assistant", "ok", message_id="m2"),
        overlay, note("m1", "ten"),
    ]  # fmt: skip

    shown = visible(lines, last_consolidated=0, running_id=None)

    assert "nine was said" in shown[0]["content"]
    assert [message["content"] for message in shown[1:]] == ["more", "ok"]


# -- each at its edge ------------------------------------------------------------------------------------


NOTE = line("system", "", kind="note")


def overlay(first_kept: object, text: object = "the gist") -> dict[str, Any]:
    return line("system", text, kind="overlay", first_kept=first_kept)


def windowed(lines: list[dict[str, Any]], window: HistoryWindow, running: str | None = None) -> list[Any]:
    return texts(visible(lines, last_consolidated=0, running_id=running, window=window))


def test_what_is_a_message_and_what_is_a_record_of_ours() -> None:
    assert all(is_message({"role": role}) for role in ("user", "assistant", "tool", "system"))
    assert not any(is_message(each) for each in ({"role": "odd"}, {}, {"role": ["user"]}))
    assert not is_message({"role": "user", "_type": "metadata"})
    assert is_record(NOTE)
    assert not is_record(line("user", "", kind="note"))
    assert not is_record(line("system", "", kind=3))


@pytest.mark.parametrize(
    ("first_kept", "at", "kept"),
    [
        (0, 5, 0),
        (4, 5, 4),
        (5, 5, 5),
        (6, 5, None),
        (-1, 5, None),
        (True, 5, None),
        (None, 5, None),
    ],
)
def test_an_overlay_keeps_from_a_place_before_it(first_kept: object, at: int, kept: int | None) -> None:
    """At most from itself."""
    assert kept_from(overlay(first_kept), at) == kept


def test_only_an_overlay_of_ours_keeps() -> None:
    assert kept_from(overlay(1) | {"kind": "note"}, 5) is None
    assert kept_from(overlay(1) | {"role": "user"}, 5) is None


def test_the_newest_overlay_that_points_at_a_message() -> None:
    """Found in a part of the session as in the whole of it."""
    lines = [
        overlay(0, "first"),
        *exchange(1),
        overlay(2, "second"),
        overlay(99, "broken"),
        line("user", "q"),
    ]

    found = newest_overlay(lines)
    assert found is not None
    assert (found["content"], found["first_kept"]) == ("second", 2)
    part = newest_overlay(lines[2:], start=2)
    assert part == found
    assert newest_overlay(lines[:1]) is not None
    assert newest_overlay([*exchange(0), overlay(4)]) is None
    assert newest_overlay([line("user", "q", kind="overlay", first_kept=0)]) is None


def test_the_history_begins_behind_records_and_with_the_question() -> None:
    lines = [*exchange(0), NOTE, NOTE, *exchange(1), NOTE]

    assert [start_of(lines, at) for at in range(8)] == [0, 0, 4, 4, 4, 4, 7, 7]
    assert start_of(lines, 8) == 0
    assert start_of([], 0) == 0
    assert start_of([NOTE, *exchange(0)], 0) == 1


def test_where_no_question_stands_before_a_result_goes_back_to_its_call() -> None:
    call, result = tool_round("a", "r")

    assert start_of([line("assistant", "x"), call, result, result, line("assistant", "y")], 3) == 1
    assert start_of([result, result], 1) == 0
    assert start_of([line("assistant", "x"), line("assistant", "y"), line("user", "q")], 1) == 1
    assert start_of([line("assistant", "x"), line("assistant", "y"), result], 1) == 1
    assert start_of([line("user", "q"), result], 1) == 0


def test_a_summary_is_told_to_the_model_or_said_by_it() -> None:
    lines = [*exchange(0), overlay(1), *exchange(1)]

    [summary, *rest] = visible(lines, last_consolidated=0, running_id=None, summary_role="assistant")

    assert summary == {"role": "assistant", "content": "<summary>\nthe gist\n</summary>"}
    assert summary == summary_message("the gist", "assistant")
    assert texts(rest) == ["a0", "q1", "a1"]


def test_what_the_model_said_before_any_person_is_left_out_without_a_summary() -> None:
    lines = [line("assistant", "hello"), line("system", "foreign"), line("user", "q"), line("assistant", "a")]

    assert seen(lines) == ["foreign", "q", "a"]
    assert seen(lines[:2]) == ["foreign"]


def test_what_was_withdrawn_and_what_was_deleted_is_not_sent() -> None:
    """In a part of the session as in the whole of it; what points behind itself withdraws nothing."""
    lines = [
        *exchange(0),
        *exchange(1, message_id="m1"),
        line("system", "", kind="undo", **{"from": 1}),
        *exchange(2),
        line("system", "", kind="undo", **{"from": 99}),
        line("system", "", kind="note", **{"from": 0}),
        line("system", "foreign"),
    ]

    assert [at for at, _ in sendable(lines)] == [0, 5, 6, 9]
    assert [at for at, _ in sendable(lines[3:], start=3)] == [5, 6, 9]
    undo = line("system", "", kind="undo", **{"from": 1})
    assert [at for at, _ in sendable([*exchange(0), undo])] == [0]
    assert [at for at, _ in sendable([undo])] == []


def test_a_deletion_takes_its_exchange_and_nothing_that_came_later() -> None:
    """Of a turn that served other messages too, the message's own line alone."""
    gone = line("system", "", kind="note", edits="m1", deleted=True)
    lines = [
        *exchange(0, message_id="m0"),
        *exchange(1, message_id="m1"),
        gone,
        *exchange(2, message_id="m1"),
    ]

    assert is_deletion(gone)
    for other in (gone | {"deleted": 1}, gone | {"kind": "undo"}, gone | {"role": "user"}):
        assert not is_deletion(other)
        assert deleted([*exchange(1, message_id="m1"), other]) == set()
    assert deleted(lines) == {2, 3}
    assert deleted(lines[3:], start=3) == {3}
    assert deleted(lines[:4]) == set()

    shared = [*exchange(1, message_id="m1"), gone]
    shared[1] = shared[1] | {"answers": ["m1", "m2"]}
    assert deleted(shared) == {0}
    entered = [*exchange(1, message_id="m1"), line("user", "more", message_id="m3", part_of="m1"), gone]
    assert deleted(entered) == {0}
    assert deleted([line("user", "q"), line("assistant", "a", answers="m1"), gone | {"edits": "x"}]) == set()


@pytest.mark.parametrize("odd", [None, 7, ["m1"]])
def test_a_deletion_that_names_no_message_takes_none_with_it(odd: object) -> None:
    """Lines of other programs have no id either: they stay."""
    nobodys = [line("user", "q"), line("assistant", "a")]
    gone = line("system", "", kind="note", deleted=True)

    assert deleted([*nobodys, gone]) == set()
    assert deleted([*(each | {"message_id": odd} for each in nobodys), gone | {"edits": odd}]) == set()


def test_so_many_messages_before_the_running_turn_are_sent() -> None:
    lines = [*exchange(0), *exchange(1), line("user", "now", message_id="m")]

    assert windowed(lines, HistoryWindow(2), "m") == ["q1", "a1", "now"]
    assert windowed(lines, HistoryWindow(3), "m") == ["q1", "a1", "now"]
    assert windowed(lines, HistoryWindow(4), "m") == ["q0", "a0", "q1", "a1", "now"]
    assert windowed(lines, HistoryWindow(0), "m") == ["now"]
    many = [each for number in range(60) for each in exchange(number)]
    assert len(windowed(many, HistoryWindow())) == 50
    assert len(windowed([*many, line("user", "q")], HistoryWindow())) == 49


def test_so_many_tokens_are_sent_to_the_last_one() -> None:
    """From the first question on from which all fits; the running turn always."""
    lines = [line("user", "q" * 40), line("assistant", "a" * 40), *exchange(1)]
    lines += [line("user", "now", message_id="m")]
    whole = estimate_messages(visible(lines, last_consolidated=0, running_id="m"))

    def sent(tokens: int) -> int:
        return len(windowed(lines, HistoryWindow(50, tokens), "m"))

    assert sent(whole) == 5
    assert sent(whole - 1) == 3
    assert [sent(tokens) for tokens in (3, 2, 0)] == [3, 1, 1]
    words = [line("user", "x" * 199_996), line("user", "y", message_id="m")]
    assert len(windowed(words, HistoryWindow(), "m")) == 2
    words[0]["content"] += "x"
    assert len(windowed(words, HistoryWindow(), "m")) == 1


def test_behind_a_summary_that_fits_any_message_may_come_first() -> None:
    """Where something had to go, the rest begins with a question again."""
    lines = [*exchange(0), overlay(1), *exchange(1), line("user", "now", message_id="m")]
    whole = estimate_messages(visible(lines, last_consolidated=0, running_id="m"))

    def sent(window: HistoryWindow) -> list[Any]:
        return windowed(lines, window, "m")[1:]

    assert sent(HistoryWindow(50, whole)) == ["a0", "q1", "a1", "now"]
    assert sent(HistoryWindow(50, whole - 1)) == ["q1", "a1", "now"]
    assert sent(HistoryWindow(3, whole)) == ["a0", "q1", "a1", "now"]
    assert sent(HistoryWindow(2, whole)) == ["q1", "a1", "now"]
    assert sent(HistoryWindow(1, whole)) == ["now"]


def test_who_selects_sees_what_was_before_the_turn() -> None:
    """And chooses by place among that; the turn goes along whole."""
    lines = [NOTE, *exchange(0), *exchange(1), line("user", "now", message_id="m"), NOTE]
    before = before_turn(lines, last_consolidated=0, running_id="m")
    assert texts(before) == ["q0", "a0", "q1", "a1"]
    assert texts(before_turn(lines, last_consolidated=0, running_id=None))[-1] == "now"
    given: list[Any] = []

    def select(messages: Any) -> list[int]:
        given.extend(messages)
        return [2, 3]

    sent = visible(lines, last_consolidated=0, running_id="m", select=select)
    assert given == before
    assert texts(sent) == ["q1", "a1", "now"]


def test_the_running_turn_begins_with_its_newest_message() -> None:
    """Not with an answer under its id; without an id nothing runs."""
    call, result = tool_round("a", "y" * 500, message_id="m", reasoning_content="hm")
    first = line("user", "try", message_id="m")
    lines = [
        first,
        call,
        result,
        line("user", "again", message_id="m"),
        line("assistant", "a", message_id="m"),
    ]

    sent = visible(lines, last_consolidated=0, running_id="m", keep_results=0)
    assert "reasoning_content" not in sent[1]
    assert sent[2]["content"].startswith("[ls: truncated")
    sent = visible(lines[:3], last_consolidated=0, running_id="m", keep_results=0)
    assert sent[1]["reasoning_content"] == "hm"
    assert sent[2]["content"] == "y" * 500
    nobody = [line("user", "q", message_id=None), line("assistant", "a", reasoning_content="hm")]
    assert "reasoning_content" not in visible(nobody, last_consolidated=0, running_id=None)[1]


def test_an_id_that_was_used_before_the_turn_is_another_one_in_it() -> None:
    old = [line("user", "q"), *tool_round("a", "r")]
    new = [line("user", "now", message_id="m"), *tool_round("a", "s")]

    sent = visible([*old, *new], last_consolidated=0, running_id="m")

    assert [each["tool_call_id"] for each in sent if each["role"] == "tool"] == ["a", "a_2"]


def test_a_silent_message_stays_where_nothing_follows() -> None:
    silent = line("user", "", message_id="m")

    assert seen([*exchange(0), silent], running="m") == ["q0", "a0", ""]
    assert seen([*exchange(0), line("user", ""), line("user", "now", message_id="m")], running="m") == [
        "q0",
        "a0",
        "now",
    ]
    assert seen([*exchange(0), line("user", "")]) == ["q0", "a0", ""]


def test_the_files_of_a_message_are_named_or_shown_the_newest_first() -> None:
    """Those of its own message alone; who shows them hears which are of the running turn."""
    file = {"name": "a.txt", "path": "media/a.txt", "mime": "text/plain", "size": 3}
    lines = [
        line("user", "old", attachments=[file]),
        line("assistant", "a", attachments=[file]),
        line("user", "now", message_id="m", attachments=[file]),
    ]
    named = seen(lines, running="m")
    assert named[1] == "a"
    assert all("a.txt" in named[at] for at in (0, 2))

    asked: list[tuple[str, bool]] = []

    class Showing:
        def content(self, text: str, line: Any, *, newest: bool) -> str:
            asked.append((text, newest))
            return f"shown {text}"

    sent = visible(lines, last_consolidated=0, running_id="m", show=Showing())  # type: ignore[arg-type]
    assert texts(sent) == ["shown old", "a", "shown now"]
    assert asked == [("now", True), ("old", False)]


@pytest.mark.parametrize("joined", [False, True])
def test_a_turn_that_a_compaction_cut_in_two_is_sent_as_the_running_one(joined: bool) -> None:
    """Its results stay whole, however many, and the model gets its own thoughts back."""
    asked = [line("user", "and this", message_id="n", part_of="m")] if joined else []
    calls = [
        {"id": id_, "type": "function", "function": {"name": "read", "arguments": "{}"}} for id_ in "abcd"
    ]
    called = line("assistant", None, tool_calls=calls, message_id="m", reasoning_content="well")
    results = [line("tool", id_ * 200, tool_call_id=id_, message_id="m") for id_ in "abcd"]

    sent = visible([*asked, called, *results, overlay(0)], last_consolidated=0, running_id="m")

    assert [each["content"] for each in sent if each["role"] == "tool"] == [id_ * 200 for id_ in "abcd"]
    assert sent[1 + len(asked)]["reasoning_content"] == "well"


def test_what_stands_before_a_turn_that_was_cut_in_two_is_sent_as_what_was() -> None:
    """… without what the model thought then."""

    def called(id_: str) -> dict[str, Any]:
        call = {"id": id_, "type": "function", "function": {"name": "read", "arguments": "{}"}}
        return line("assistant", None, tool_calls=[call], message_id=id_, reasoning_content="well")

    before = [called("o"), line("tool", "r", tool_call_id="o", message_id="o"), line("assistant", "a")]
    lines = [*before, called("m"), line("tool", "r", tool_call_id="m", message_id="m"), overlay(0)]

    sent = visible(lines, last_consolidated=0, running_id="m")

    thought = [each.get("reasoning_content") for each in sent if each.get("tool_calls")]
    assert thought == [None, "well"]


Line = dict[str, Any]


# -- the newest alone ------------------------------------------------------------------------------------


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


def sent_last(stored: Sequence[Line], turn: Sequence[Line], last: int) -> list[Line]:
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

    shown = sent_last(stored, turn, last)

    assert [line["content"] for line in shown[:last]] == [line["content"] for line in stored[-last:]]
    assert len(shown) == last + len(turn)


@pytest.mark.parametrize("last", range(1, 45))
def test_the_view_is_the_one_of_nanobot(last: int) -> None:
    """Wherever the cut falls, into a chain of tools too."""
    stored = [line for number in range(12) for line in (tool_exchange if number % 3 else exchange)(number)]

    shown = sent_last(stored, running(), last)

    assert [(line["role"], line["content"] or "") for line in shown[:-1]] == [
        (line["role"], line["content"]) for line in get_history(stored, last)
    ]
    assert shown[-1]["content"] == "new"


def test_records_are_not_counted() -> None:
    stored = [line for number in range(10) for line in exchange(number)]
    stored.insert(19, {"role": "system", "kind": "note", "edits": "x", "content": "e"})

    assert [line["content"] for line in sent_last(stored, running(), 4)] == ["q8", "a8", "q9", "a9", "new"]
