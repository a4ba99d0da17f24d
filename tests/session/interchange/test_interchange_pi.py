"""Sessions of pi and OpenClaw: the branch of the newest entry, summaries, tools, images, and their keys."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from session.interchange import pi
from session.interchange.conversation import BadFormat, Conversation, Line, calls_of
from session.interchange.pi import our_key
from tests.session.interchange.test_interchange_odd import AT, jsonl, records

HEADER = {"type": "session", "version": 3, "id": "5f3c0a", "timestamp": AT}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def said(id_: str, parent: str | None, role: str, text: str) -> dict[str, Any]:
    return entry(id_, parent, {"role": role, "content": [{"type": "text", "text": text}]})


def entry(id_: str, parent: str | None, message: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": AT, "message": message}


def read(*records: dict[str, Any]) -> Conversation:
    (found,) = pi.decode({"--w--/s.jsonl": jsonl(*records)})
    return found


def texts(lines: tuple[Line, ...]) -> list[Any]:
    return [line["content"] for line in lines]


def test_the_branch_of_the_last_entry_is_read_and_the_others_are_said() -> None:
    found = read(
        HEADER,
        said("a", None, "user", "one"),
        said("b", "a", "assistant", "left"),
        said("c", "b", "user", "left, too"),
        said("d", "a", "assistant", "right"),
        {"type": "label", "id": "e", "parentId": "d", "timestamp": AT, "targetId": "b", "label": "x"},
    )

    assert texts(found.lines) == ["one", "right"]
    assert (found.session_id, found.key) == ("5f3c0a", "")
    assert found.created_at is not None
    assert found.lost == ("entries of type label", "messages on other branches (2)")


def test_an_entry_without_a_parent_follows_the_one_before_it() -> None:
    """Version 1 had neither ids nor parents, and its summaries name what they keep by its place."""
    plain = [
        {"type": "message", "timestamp": AT, "message": {"role": "user", "content": text}} for text in "abcd"
    ]
    summary = {"type": "compaction", "summary": "S", "firstKeptEntryIndex": 3, "tokensBefore": 9}

    found = read({**HEADER, "modelId": "m"}, *plain, summary, *plain[:1])

    strange = read(HEADER, {"odd": 1}, *plain, {**summary, "firstKeptEntryIndex": 4})

    assert [line.get("first_kept") for line in strange.lines] == [None, None, None, None, 2]
    assert strange.lost == ("records that are not entries",)
    assert texts(found.lines) == ["a", "b", "c", "d", "S", "a"]
    assert (found.lines[4]["kind"], found.lines[4]["first_kept"], found.lines[4]["tokens_before"]) == (
        "overlay",
        2,
        9,
    )
    assert (found.inner, found.lost) == ({"model": "m"}, ())


@pytest.mark.parametrize(("kept", "first"), [("b", 1), ("elsewhere", 2)])
def test_a_compaction_becomes_an_overlay_line(kept: str, first: int) -> None:
    compaction = {"type": "compaction", "id": "c", "parentId": "b", "summary": "S", "tokensBefore": 7}
    files = {"readFiles": ["r"], "modifiedFiles": ["m"]}
    found = read(
        HEADER,
        said("a", None, "user", "one"),
        said("b", "a", "assistant", "two"),
        {**compaction, "timestamp": AT, "firstKeptEntryId": kept, "details": files},
        said("d", "c", "user", "three"),
    )

    assert texts(found.lines) == ["one", "two", "S", "three"]
    overlay = found.lines[2]
    assert (overlay["kind"], overlay["first_kept"], overlay["tokens_before"]) == ("overlay", first, 7)
    assert (overlay["read_files"], overlay["modified_files"]) == (["r"], ["m"])
    assert found.lost == ()


def test_calls_results_and_thinking() -> None:
    answer, result = records("""
{"role": "assistant", "provider": "p", "model": "big", "timestamp": 1,
 "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
             {"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"command": "ls"}}],
 "usage": {"input": 3, "output": 5, "cacheRead": 100, "cacheWrite": 20, "cost": {"total": 0.25}}},
{"role": "toolResult", "toolCallId": "t1", "toolName": "bash", "isError": true, "details": {"exit": 1},
 "content": [{"type": "text", "text": "a.txt"}, {"type": "image", "data": "", "mimeType": "image/png"}]}
""")

    found = read(HEADER, said("a", None, "user", "list"), entry("b", "a", answer), entry("c", "b", result))

    _, asked, got = found.lines
    assert [(one.id, one.name, one.arguments) for one in calls_of(asked)] == [
        ("t1", "bash", {"command": "ls"})
    ]
    assert asked["content"] == "I look."
    assert asked["usage"] == {"prompt": 123, "completion": 5, "cost_usd": 0.25}
    assert (got["role"], got["tool_call_id"], got["name"], got["content"]) == ("tool", "t1", "bash", "a.txt")
    assert got["is_error"] is True
    assert found.inner == {"model": "big"}
    assert found.lost == ("images in tool results", "thinking blocks", "tool results' field details")


def test_an_image_becomes_a_file_and_an_attachment() -> None:
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    broken = {"type": "image", "data": "%%%", "mimeType": "image/png"}
    content = [{"type": "text", "text": "look"}, image, broken]
    digest = hashlib.sha256(PNG).hexdigest()
    ref = f"media/{digest[:2]}/{digest}.png"

    found = read(HEADER, entry("a", None, {"role": "user", "content": content}))

    assert found.media == {ref: PNG}
    assert found.lines[0]["attachments"] == [
        {"kind": "photo", "name": "photo.png", "mime": "image/png", "size": len(PNG), "ref": ref}
    ]
    assert found.lost == ("images that are not base64 of PNG, JPEG, GIF or WebP",)


def test_what_extensions_and_hands_put_into_the_context_comes_in_as_words_of_the_person() -> None:
    command = {"role": "bashExecution", "command": "ls", "output": "a.txt", "exitCode": 2}
    found = read(
        HEADER,
        entry("a", None, command),
        {"type": "custom_message", "id": "b", "parentId": "a", "content": "note", "display": False},
        {"type": "branch_summary", "id": "c", "parentId": "b", "timestamp": AT, "summary": "elsewhere"},
        {"type": "session_info", "id": "d", "parentId": "c", "timestamp": AT, "name": "cat"},
        entry("e", "d", {"role": "later", "content": "?"}),
    )

    assert [line["role"] for line in found.lines] == ["user"] * 3
    assert texts(found.lines) == [
        "[Ran by hand] ls\na.txt\n[exit code 2]",
        "note",
        "[What was said on another branch]\nelsewhere",
    ]
    assert found.inner == {"name": "cat"}
    assert found.lost == ("custom messages' field display", "messages of type later")


@pytest.mark.parametrize(
    "records",
    [
        [said("a", "b", "user", "one"), said("b", "a", "user", "two")],
        [said("a", "a", "user", "one")],
        [said("a", "gone", "user", "one")],
        [said("a", None, "user", "one"), said("a", "a", "user", "two")],
        [entry("a", None, {"role": "user", "content": {"odd": 1}})],
        [{"type": "compaction", "summary": None, "firstKeptEntryIndex": 10**30}],
        [{"type": "message", "message": {"role": ["user"]}}],
    ],
)
def test_a_damaged_tree_is_read_as_far_as_it_goes(records: list[dict[str, Any]]) -> None:
    found = read(HEADER, *records)

    assert len(found.lines) <= 2
    assert all(line["role"] in ("user", "system") for line in found.lines)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("agent:main:telegram:group:-100123", "telegram:-100123"),
        ("agent:main:telegram:group:-100123:topic:47", "telegram:-100123:topic:47"),
        ("agent:main:telegram:direct:42", "telegram:42"),
        ("agent:work:telegram:second:direct:42", "telegram:42"),
        ("agent:main:discord:channel:99", "discord:99"),
        ("agent:main:discord:channel:99:thread:5", "discord:5"),
        ("agent:main:cron:job-1:run:7", "cron:job-1"),
        ("agent:main:main", ""),
        ("agent:main:subagent:3", ""),
        ("global", "global"),
    ],
)
def test_the_key_of_a_chat_is_the_one_it_has_here(theirs: str, ours: str) -> None:
    assert our_key(theirs) == ours


def test_the_store_of_openclaw_names_the_key_of_each_file() -> None:
    store = {
        "agent:main:main": {"sessionId": "s1", "updatedAt": 1},
        "agent:main:telegram:group:-1:topic:2": {
            "sessionFile": "/home/x/s2-topic-2.jsonl",
            "sessionId": "s2",
        },
    }
    message = said("a", None, "user", "one")
    files = {
        "sessions/s1.jsonl": jsonl({**HEADER, "id": "s1"}, message),
        "sessions/s2-topic-2.jsonl": jsonl({**HEADER, "id": "s2"}, message),
        "sessions/s2.trajectory.jsonl": jsonl({"type": "trace"}),
        "sessions/sessions.json": json.dumps(store).encode(),
    }

    first, second = pi.decode_openclaw(files)

    assert (first.key, first.lost) == ("", ("the key agent:main:main",))
    assert (second.key, second.session_id) == ("telegram:-1:topic:2", "s2")
    with pytest.raises(BadFormat):
        pi.decode_openclaw({"sessions/sessions.json": b"{}", "sessions/a.json": b"{}"})
