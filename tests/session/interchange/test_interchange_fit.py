"""A file of another format is refused with what it looks like, and losses name what was lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from session.interchange import annabelle, overlay
from session.interchange.conversation import BadFormat, Conversation
from session.interchange.formats import FORMATS, SOURCES
from session.transcript.line import make_line

AT = "2026-02-11T01:14:59.755Z"
ENTRIES = [
    {"type": "session", "version": 3, "id": "5f3c", "timestamp": AT, "cwd": "/w"},
    {
        "type": "message",
        "id": "a",
        "parentId": None,
        "timestamp": AT,
        "message": {"role": "user", "content": "hi"},
    },
    {
        "type": "compaction",
        "id": "b",
        "parentId": "a",
        "timestamp": AT,
        "summary": "s",
        "firstKeptEntryId": "a",
    },
    {
        "type": "message",
        "id": "c",
        "parentId": "b",
        "timestamp": AT,
        "message": {"role": "user", "content": "yes"},
    },
]
TURN = {"type": "turn", "user": "hi", "assistant": "yes", "timestamp": AT}
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "pi": ENTRIES,
    "annabelle": [{"type": "header", "chatId": "1", "createdAt": AT}, TURN, TURN],
    "nanobot": [
        {"_type": "metadata", "key": "cli:a", "created_at": AT},
        {"role": "user", "content": "hi", "timestamp": AT},
    ],
    "overlay": [
        {"recordType": "message", "seq": 1, "role": "user", "content": [{"type": "text", "text": "hi"}]}
    ],
    "rows": [{"chat_sessions": [{"id": "a"}], "session_messages": []}],
}


def jsonl(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.mark.parametrize("looks", SAMPLES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_file_of_another_format_is_refused_with_what_it_looks_like(name: str, looks: str) -> None:
    """One line that fits by chance, among a thousand, makes no session."""
    if looks == name or {looks, name} in (
        {"nanobot", "nanobot-b64"},
        {"pi", "openclaw"},
        {"nanobot", "archive"},
    ):
        return
    data = jsonl(*SAMPLES[looks] * (500 if looks != "rows" else 1))
    if looks == "pi":
        data += jsonl({"role": "user", "content": "the only one", "timestamp": AT})

    with pytest.raises(BadFormat) as caught:
        SOURCES[name].decode({"x.jsonl": data})

    assert f"--from {looks}" in caught.value.hint


def test_what_looks_like_nothing_known_is_refused_with_what_was_wanted() -> None:
    data = jsonl(TURN, *({"type": f"event{n}"} for n in range(1482)))

    with pytest.raises(BadFormat, match="only 1 of 1483 records are") as caught:
        annabelle.decode({"x.jsonl": data})

    assert caught.value.hint


def test_a_turn_without_a_chain_keeps_the_tools_it_used_and_its_agent() -> None:
    """The example of the format's own description: names of tools without their calls."""
    header = {"type": "header", "chatId": "8304042211", "agentId": "butler", "createdAt": AT, "version": 1}
    turn = {**TURN, "toolsUsed": ["gmail_list_emails"], "tokens": {"prompt": 12955, "completion": 100}}

    (found,) = annabelle.decode({"8304042211.jsonl": jsonl(header, turn)})
    written = annabelle.encode(found)

    assert (found.lost, found.inner) == ((), {"agent_id": "butler"})
    assert found.lines[-1]["tools_used"] == ["gmail_list_emails"]
    records = [json.loads(line) for line in written.files["chat.jsonl"].splitlines()]
    assert records[0]["agentId"] == "butler"
    assert (records[1]["toolsUsed"], records[1]["tokens"]) == (turn["toolsUsed"], turn["tokens"])
    assert not any("tools_used" in words or "agent" in words for words in written.lost)


@pytest.mark.parametrize("name", ["overlay", "archive", "rows"])
def test_an_export_that_leaves_the_names_of_tools_behind_says_so(name: str) -> None:
    lines = (make_line("user", "hi", AT), make_line("assistant", "yes", AT, tools_used=["gmail"]))

    lost = FORMATS[name].encode(Conversation(lines, key="cli:a", session_id="x")).lost

    assert "lines' field tools_used" in lost


def test_losses_name_the_fields_and_kinds_that_were_lost() -> None:
    turns = jsonl({**TURN, "mood": "good"}, TURN, {"type": "later"})
    message = {
        "recordType": "message",
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "x"}],
    }

    (turn,) = annabelle.decode({"a.jsonl": turns})
    (block,) = overlay.decode({"a/session.jsonl": jsonl(message, message)})

    tables = {
        "chat_sessions": [{"id": "a", "owner": "ada"}],
        "session_messages": [
            {"session_id": "a", "role": "user", "content": "x", "stars": 5, "metadata": {"mood": "good"}}
        ],
    }
    (rows,) = SOURCES["rows"].decode({"a.json": json.dumps(tables).encode()})
    (record,) = overlay.decode({"a/session.jsonl": jsonl({**message, "content": "x", "stars": 5})})

    assert rows.lost == ("messages' field stars", "messages' metadata field mood", "sessions' field owner")
    assert record.lost == ("records' field stars",)
    assert turn.lost == ("records of type later", "turns' field mood")
    assert block.lost == ("blocks of type image (2)",)
