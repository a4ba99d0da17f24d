"""What of a transcript a model sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from session.context.context import Part, request
from session.models.tokens import estimate, estimate_messages
from session.transcript.history import SUMMARY_HEAD, start_of, visible
from session.transcript.repair import LOST_RESULT


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


def test_reasoning_goes_back_within_its_turn_only() -> None:
    """A provider gets its reasoning again while the turn runs, never afterwards."""
    old = [
        line("user", "q0", message_id="m0"),
        *tool_round("a", "r", message_id="m0", reasoning_content="old"),
    ]
    new = [
        line("user", "q1", message_id="m1"),
        *tool_round("b", "r", message_id="m1", reasoning_content="new"),
    ]

    sent = visible([*old, *new], last_consolidated=0, running_id="m1")

    assert [message.get("reasoning_content") for message in sent if "tool_calls" in message] == [None, "new"]


@pytest.mark.parametrize(
    ("consolidated", "first"), [(0, "q0"), (2, "q1"), (3, "q1"), (99, "q0"), (-1, "q0"), (True, "q0")]
)
def test_history_begins_at_the_exchange_of_the_offset(consolidated: int, first: str) -> None:
    """An offset inside an exchange moves back to its user line; one that is no place counts as 0."""
    assert seen(exchange(0) + exchange(1), consolidated)[0] == first


def test_offset_at_the_end_sends_nothing_old() -> None:
    """Everything consolidated: only the running exchange is sent."""
    lines = exchange(0) + exchange(1)

    assert seen(lines, 4) == []
    assert seen([*lines, line("user", "q2", message_id="m2")], 4, "m2") == ["q2"]
    assert seen([*lines, line("system", "", kind="undo", **{"from": 9})], 4) == []


def test_offset_on_a_tool_result() -> None:
    """An offset on a tool result moves back to the question, so that no result is an orphan."""
    lines = [line("user", "q"), *tool_round("a", "r"), line("assistant", "done")]

    assert seen(lines, 2) == ["q", None, "r", "done"]


def test_offset_without_a_user_line_before() -> None:
    """Where no user line stands before the offset, a tool result moves back to its call."""
    lines = [line("assistant", "note"), *tool_round("a", "r"), line("assistant", "done")]

    assert start_of(lines, 2) == 1
    assert start_of(lines, 3) == 3


def test_own_records_are_never_sent_and_foreign_system_lines_are() -> None:
    """Lines with a ``kind`` are bookkeeping; other system lines are part of the talk."""
    lines = [line("system", "be kind"), *exchange(0), line("system", "x", kind="note", edits="m0")]

    assert seen(lines) == ["be kind", "q0", "a0"]


def test_own_records_do_not_part_call_and_result() -> None:
    """A record that was written between a call and its result changes nothing for the model."""
    call, result = tool_round("a", "r")
    lines = [line("user", "q"), call, line("system", "", kind="note"), result]

    assert seen(lines) == ["q", None, "r"]


def test_a_withdrawn_exchange_is_left_out() -> None:
    """``/undo`` hides what stands between its place and the one it names."""
    lines = [*exchange(0), *exchange(1), line("system", "", kind="undo", **{"from": 2}), *exchange(2)]

    assert seen(lines) == ["q0", "a0", "q2", "a2"]


def test_newest_overlay_stands_for_what_came_before() -> None:
    """The history begins at ``first_kept`` with the summary, whatever the consolidation offset says."""
    lines = [*exchange(0), *exchange(1), line("system", "old", kind="overlay", first_kept=1)]
    lines += [*exchange(2), line("system", "the gist", kind="overlay", first_kept=2), *exchange(3)]

    sent = visible(lines, last_consolidated=8, running_id=None)

    assert sent[0] == {"role": "user", "content": f"{SUMMARY_HEAD}the gist\n</summary>"}
    assert texts(sent[1:]) == ["q1", "a1", "q2", "a2", "q3", "a3"]


def test_an_overlay_that_points_nowhere_is_passed_over() -> None:
    """A damaged ``first_kept`` hides nothing."""
    assert seen([*exchange(0), line("system", "s", kind="overlay", first_kept=77)]) == ["q0", "a0"]


def test_results_of_the_running_turn_stay_whole() -> None:
    """Older results are cut but the last two; those of the running turn neither shrink nor count."""
    long = "y" * 500
    lines = [line("user", "q", message_id="m0")]
    for call_id in "abc":
        lines += tool_round(call_id, long, message_id="m0")
    lines += [line("user", "q", message_id="m1"), *tool_round("d", long, message_id="m1")]

    sent = visible(lines, last_consolidated=0, running_id="m1")

    results = [message["content"] for message in sent if message["role"] == "tool"]
    assert results == ["[ls: truncated, was 500 chars]", long, long, long]


def test_stored_pictures_are_named() -> None:
    """A picture of an earlier message is not sent again, its text is."""
    blocks = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,A"}}]

    assert seen([line("user", blocks)]) == ["x\n[image]"]


def test_what_is_no_message_does_not_count() -> None:
    """Records of other types and unknown roles are neither sent nor counted for the offset."""
    lines = [{"_type": "other", "role": "user", "content": "no"}, *exchange(0), line("function", "f")]

    assert seen([*lines, *exchange(1)], 2) == ["q1", "a1"]


def test_a_missing_result_is_made_up_for_the_model() -> None:
    """Two parallel calls and one result: the other is made up in place."""
    call = tool_round("a", "r")[0]
    call["tool_calls"] = [*call["tool_calls"], {**call["tool_calls"][0], "id": "b"}]

    assert seen([line("user", "q"), call, line("tool", "r", tool_call_id="a")]) == [
        "q",
        None,
        "r",
        LOST_RESULT,
    ]


def test_system_message_leaves_out_absent_parts() -> None:
    """Each part stands under its heading, blank ones are not there."""
    messages = request([Part("", "You are."), Part("Notes", "  "), Part("Time", "noon")], [])

    assert messages == [{"role": "system", "content": "You are.\n\n## Time\nnoon"}]
    assert request([Part("A", "")], [{"role": "user", "content": "q"}]) == [{"role": "user", "content": "q"}]


def test_estimate_rounds_up() -> None:
    """Four characters are a token, and so is the rest."""
    assert (estimate(""), estimate("abcd"), estimate("abcde")) == (0, 1, 2)
    assert estimate_messages(tool_round("a", "12345678")) == 3


def test_goldens_of_the_format() -> None:
    """A file as nanobot writes it becomes the same history as in nanobot (its own fields left out)."""
    rows = [
        {"_type": "metadata", "key": "cli:x", "last_consolidated": 0},
        {"role": "user", "content": "q", "timestamp": "2026-01-01T00:00:00"},
        *tool_round("a", "r"),
        {"role": "assistant", "content": "a", "timestamp": "x", "tools_used": ["ls"]},
    ]
    parsed = [json.loads(json.dumps(row)) for row in rows]

    sent = visible(parsed, last_consolidated=0, running_id=None)

    assert [set(message) for message in sent] == [
        {"role", "content"},
        {"role", "content", "tool_calls"},
        {"role", "content", "tool_call_id", "name"},
        {"role", "content"},
    ]


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
