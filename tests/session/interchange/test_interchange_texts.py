"""Texts that stand in other forms than usual come in all the same; what does not come in is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from session.interchange import annabelle, overlay, pi, rows
from session.interchange.conversation import BadFormat, Conversation

AT = "2026-02-11T01:14:59.755Z"


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


LISTED = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, {"type": "image"}, 7]


def document(*messages: dict[str, Any], **session: Any) -> Conversation:
    tables = {"chat_sessions": [{"id": "a", **session}], "session_messages": messages}
    (found,) = rows.decode({"dump.json": json.dumps(tables).encode()})
    return found


def test_a_row_whose_text_is_a_list_of_blocks_keeps_it() -> None:
    found = document({"session_id": "a", "role": "user", "content": LISTED})

    assert [line["content"] for line in found.lines] == ["one\ntwo"]
    assert found.lost == ("blocks that are not text (2)",)


@pytest.mark.parametrize("content", [{"text": "one"}, 7, True])
def test_a_row_whose_text_is_something_else_says_so(content: object) -> None:
    found = document({"session_id": "a", "role": "user", "content": content})

    assert [line["content"] for line in found.lines] == [""]
    assert found.lost == ("contents that are not text",)


def test_a_row_of_no_session_is_said() -> None:
    """An id may be a number in one table and a text in the other."""
    message = {"role": "user", "content": "hi"}

    found = document(*({**message, "session_id": id_} for id_ in ("7", 7.0, 8, None, [7])), message, id=7)

    assert [line["content"] for line in found.lines] == ["hi", "hi"]
    assert found.lost == ("messages without a session (4)",)


def test_rows_of_no_session_are_said_once_among_several() -> None:
    tables = {
        "chat_sessions": [{"id": "a"}, {"id": [1]}, "no session"],
        "session_messages": [
            {"session_id": "a", "role": "user", "content": "hi"},
            {"session_id": "gone", "role": "user", "content": "hi"},
            {"session_id": [1], "role": "user", "content": "hi"},
            {"role": "user", "content": "hi"},
            "no row",
        ],
    }

    found = rows.decode({"dump.json": json.dumps(tables).encode()})

    assert [len(one.lines) for one in found] == [1, 1]
    assert [one.lost for one in found] == [("messages without a session (3)",), ()]


@pytest.mark.parametrize(("field", "role"), [("user", "user"), ("assistant", "assistant")])
@pytest.mark.parametrize("chain", [None, [], [{"role": "system", "content": "be kind"}]])
def test_a_turn_whose_text_is_a_list_of_blocks_keeps_it(field: str, role: str, chain: object) -> None:
    turn = {"type": "turn", "user": "hi", "assistant": "yes", "timestamp": AT, "messages": chain}

    (found,) = annabelle.decode({"4.jsonl": jsonl({**turn, field: LISTED})})

    assert [line["content"] for line in found.lines if line["role"] == role] == ["one\ntwo"]
    assert len(found.lines) == 2 + bool(chain)
    assert found.lost == ("blocks that are not text (2)",)


def test_a_turn_whose_text_is_something_else_says_so() -> None:
    (found,) = annabelle.decode({"4.jsonl": jsonl({"type": "turn", "user": {"x": 1}, "assistant": 7})})

    assert [line["content"] for line in found.lines] == ["", ""]
    assert found.lost == ("contents that are not text (2)",)


def test_blocks_that_stand_in_the_chain_are_not_told_twice() -> None:
    chain = [{"role": "user", "content": LISTED[:2]}, {"role": "assistant", "content": LISTED[:1]}]
    turn = {"type": "turn", "user": LISTED[:2], "assistant": LISTED[:1], "timestamp": AT, "messages": chain}

    (found,) = annabelle.decode({"4.jsonl": jsonl(turn)})

    assert [line["role"] for line in found.lines] == ["user", "assistant"]
    assert found.lost == ()


def test_messages_without_any_session_are_refused() -> None:
    """Nothing would be imported, and nobody would hear of it."""
    tables = {"chat_sessions": ["no session"], "session_messages": [{"role": "user", "content": "hi"}]}

    with pytest.raises(BadFormat) as caught:
        rows.decode({"dump.json": json.dumps(tables).encode()})

    assert caught.value.hint
    assert rows.decode({"dump.json": b'{"chat_sessions": [], "session_messages": []}'}) == []


@pytest.mark.parametrize(
    ("codec", "record"),
    [
        (overlay, {"recordType": "message", "role": "user", "content": {"text": "one"}}),
        (pi, {"type": "message", "message": {"role": "user", "content": {"text": "one"}}}),
        (annabelle, {"type": "turn", "messages": [{"role": "user", "content": {"text": "one"}}]}),
    ],
)
def test_a_content_that_is_no_text_is_said(codec: Any, record: dict[str, Any]) -> None:
    (found,) = codec.decode({"s.jsonl": jsonl(record)})

    assert found.lost == ("contents that are not text",)


def test_parts_and_chains_that_are_none_are_said() -> None:
    tool = {"role": "tool", "content": [{"type": "tool-result", "result": "x"}, {"type": "later"}, 7]}
    turns = ({"type": "turn", "messages": chain} for chain in ([tool], {"role": "user"}))

    (found,) = annabelle.decode({"s.jsonl": jsonl(*turns)})

    assert [line["role"] for line in found.lines] == ["tool"]
    assert found.lost == ("messages without a type", "parts of type later", "parts without a type")


def test_a_summary_that_is_a_list_of_blocks_is_kept() -> None:
    found = document(compaction_summary=LISTED)

    assert [(line["kind"], line["content"]) for line in found.lines] == [("overlay", "one\ntwo")]
    assert found.lost == ("blocks that are not text (2)",)
