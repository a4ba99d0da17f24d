"""Sessions that no letter of ours began: keys without a colon, none but line 1, pi's files, tool results."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli_place import Ran, import_into, listed, session_file, shown, write

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
AT = "2026-02-11T01:14:59.755Z"


def pi_file(path: Path) -> Path:
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    call = {"type": "toolCall", "id": "t", "name": "bash", "arguments": {"command": "ls"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "what is here?"}, image]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
        {
            "role": "toolResult",
            "toolCallId": "t",
            "toolName": "bash",
            "content": [{"type": "text", "text": "zebra"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "An animal."}]},
    ]
    entries = [
        {
            "type": "message",
            "id": f"e{n}",
            "parentId": f"e{n - 1}" if n else None,
            "timestamp": AT,
            "message": one,
        }
        for n, one in enumerate(messages)
    ]
    return write(path, {"type": "session", "version": 3, "id": "5f3c", "timestamp": AT}, *entries)


def test_a_session_of_pi_comes_in_with_its_image_and_says_what_it_lost(tmp_path: Path) -> None:
    done = import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), name="pi")

    assert (done.code, done.out.split()[0]) == (0, "cli:5f3c"), done.err
    assert "not imported: thinking blocks" in done.err
    lines = shown(tmp_path / "w", "cli:5f3c")
    assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
    (file,) = lines[0]["attachments"]
    stored = tmp_path / "w" / file["ref"]
    assert (stored.read_bytes(), stored.stat().st_mode & 0o777) == (PNG, 0o600)


def test_what_is_only_read_is_refused_by_name_where_it_should_be_written(tmp_path: Path) -> None:
    import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), "--key", "cli:a", name="openclaw")

    for name in ("pi", "openclaw"):
        done = Ran(tmp_path / "w", "sessions", "export", "--to", name, "cli:a")
        assert (done.code, done.out) == (2, "")
        assert f"error: {name} can only be imported" in done.err
        assert "try: use --to with one of nanobot" in done.err


def test_results_of_tools_are_found_where_it_is_asked_for(tmp_path: Path) -> None:
    import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), "--key", "cli:a", name="pi")

    without = Ran(tmp_path / "w", "sessions", "search", "cli:a", "zebra", "--json")
    with_tools = Ran(tmp_path / "w", "sessions", "search", "cli:a", "zebra", "--tools", "--json")

    assert json.loads(without.out) == []
    assert [(hit["role"], hit["seq"], hit["text"]) for hit in json.loads(with_tools.out)] == [
        ("tool", 3, "zebra")
    ]


def test_a_key_without_a_colon_is_kept_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Sessions of nanobot such as ``heartbeat`` have such keys."""
    home = tmp_path / "w"
    import_into(home, session_file(tmp_path / "heartbeat.jsonl", "heartbeat", "tick"))

    assert [row["key"] for row in listed(home)] == ["heartbeat"]
    talk = Ran(home, "chat", "--key", "heartbeat", "-m", "still there?")
    assert (talk.code, talk.out) == (0, "echo: still there?\n"), talk.err
    assert [line["content"] for line in shown(home, "heartbeat")] == [
        "tick",
        "still there?",
        "echo: still there?",
    ]
    assert [row["key"] for row in listed(home)] == ["heartbeat"]
    head, *lines = Ran(home, "sessions", "export", "--to", "nanobot", "heartbeat").bytes.splitlines()
    assert (json.loads(head)["key"], len(lines)) == ("heartbeat", 3)


def test_a_key_without_a_colon_begins_no_session(tmp_path: Path) -> None:
    """It is a slip of the keyboard then."""
    done = Ran(tmp_path / "w", "chat", "--key", "telegram42", "-m", "hi")

    assert (done.code, done.out) == (1, "")
    assert "try: a key is channel:chat_id" in done.err
    assert listed(tmp_path / "w") == []


def test_a_session_without_messages_keeps_its_line_1(tmp_path: Path) -> None:
    source, home = tmp_path / "n", tmp_path / "w"
    session_file(source / "sessions" / "cli_a.jsonl", "cli:a", name="cat")
    session_file(source / "sessions" / "cli_b.jsonl", "cli:b", "hi")

    first = import_into(home, source)
    again = import_into(home, source)

    assert first.code == again.code == 0, first.err
    rows = {row["key"]: row for row in listed(home)}
    assert sorted(rows) == ["cli:a", "cli:b"]
    assert (rows["cli:a"]["name"], rows["cli:a"]["message_count"]) == ("cat", 0)
    assert rows["cli:a"]["created_at"].startswith("2026-02-01")
    assert again.out == ""


def test_lines_with_odd_calls_and_numbers_are_shown(tmp_path: Path) -> None:
    """As other programs write them; what is printed as JSON is JSON, to the strictest reader."""
    at = {"timestamp": "2026-01-01T00:00:00"}
    calls: list[Any] = ["abc", [1, None, {"function": "x"}, {"function": {"name": "ls"}}], 7, {"name": "x"}]
    lines = [{"role": "assistant", "content": "yo", "tool_calls": each, **at} for each in calls]
    odd = {"role": "tool", "content": {"a": math.inf, "b": [-math.inf, 1.5]}, "score": math.nan, **at}
    head = {"_type": "metadata", "key": "web:odd", "created_at": at["timestamp"], "metadata": {}}
    write(tmp_path / "sessions" / "web_odd.jsonl", head, *lines, odd)

    text = Ran(tmp_path, "sessions", "show", "web:odd")
    document = Ran(tmp_path, "sessions", "show", "web:odd", "--json")

    assert (text.code, text.out.count("assistant")) == (0, 4), text.err
    assert "[ls]: yo" in text.out
    found = json.loads(document.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["messages"][-1]["content"] == {"a": None, "b": [None, 1.5]}
    assert found["messages"][-1]["score"] is None
    assert found["messages"][0]["tool_calls"] == "abc"
