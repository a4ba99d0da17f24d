"""Odd values at every place of a file: what can be read is read, and what cannot is said, never raised."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest

from session.errors import SessionError
from session.interchange import openclaw, overlay, pi
from session.interchange.conversation import Conversation
from session.interchange.formats import FORMATS, SOURCES
from session.transcript.line import ROLES, dump

AT = "2026-02-11T01:14:59.755Z"
ULID = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"
BLOCKS = [{"type": "text", "text": "one"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]
NAN, INF = float("nan"), float("inf")
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**64, 10**400, 0.5, 1e308, NAN, INF, -INF),
    *("", "x", "\x00", "\ud800", "1" * 40, "user", "compaction"),
    *([], [[]], [None], {}, {"": {}}, {"type": []}, BLOCKS),
)
PI = [
    {"type": "session", "version": 3, "id": "5f3c", "timestamp": AT, "modelId": "m"},
    {
        "type": "message",
        "id": "a",
        "parentId": None,
        "timestamp": AT,
        "message": {"role": "user", "content": BLOCKS, "timestamp": 1},
    },
    {
        "type": "message",
        "id": "b",
        "parentId": "a",
        "message": {
            "role": "assistant",
            "content": [
                *BLOCKS[:1],
                {"type": "toolCall", "id": "t", "name": "ls", "arguments": {"path": "."}},
            ],
            "model": "m",
            "usage": {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "cost": {"total": 0.5}},
        },
    },
    {
        "type": "message",
        "id": "c",
        "parentId": "b",
        "message": {
            "role": "toolResult",
            "toolCallId": "t",
            "toolName": "ls",
            "content": BLOCKS,
            "isError": True,
        },
    },
    {
        "type": "compaction",
        "id": "d",
        "parentId": "c",
        "summary": "s",
        "firstKeptEntryId": "b",
        "firstKeptEntryIndex": 2,
        "tokensBefore": 7,
        "details": {"readFiles": ["r"], "modifiedFiles": ["m"]},
    },
    {"type": "session_info", "id": "e", "parentId": "d", "name": "cat"},
    {"type": "branch_summary", "id": "f", "parentId": "e", "summary": "elsewhere"},
    {"type": "custom_message", "id": "g", "parentId": "f", "content": BLOCKS},
    {
        "type": "message",
        "id": "h",
        "parentId": "g",
        "message": {"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 1},
    },
]
CALL = {"id": "t", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
# By format: its files, each a list of records.
SAMPLES: dict[str, dict[str, list[Any]]] = {
    "pi": {"s.jsonl": PI},
    "openclaw": {
        "s.jsonl": PI,
        "sessions.json": [{"agent:main:telegram:direct:4": {"sessionId": "5f3c", "sessionFile": "s.jsonl"}}],
    },
    "annabelle": {
        "4.jsonl": [
            {"type": "header", "chatId": "4", "agentId": "a", "createdAt": AT, "version": 1},
            {"type": "compaction", "summary": "s", "compactedTurns": 2, "timestamp": AT},
            {"type": "turn", "user": "hi", "assistant": "yes", "timestamp": AT, "toolsUsed": ["ls"]},
            {
                "type": "turn",
                "user": "hi",
                "assistant": "yes",
                "timestamp": AT,
                "tokens": {"prompt": 1, "completion": 2},
                "messages": [
                    {"role": "user", "content": "hi"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": "x"},
                            {"type": "tool-call", "toolCallId": "t", "toolName": "ls", "args": {"a": 1}},
                        ],
                    },
                    {
                        "role": "tool",
                        "content": [
                            {
                                "type": "tool-result",
                                "toolCallId": "t",
                                "toolName": "ls",
                                "isError": True,
                                "output": {"type": "json", "value": {"n": 1}},
                            }
                        ],
                    },
                ],
            },
        ]
    },
    "overlay": {
        f"{ULID}/session.jsonl": [
            {"recordType": "message", "seq": 1, "role": "user", "content": BLOCKS, "timestamp": AT},
            {
                "recordType": "message",
                "seq": 2,
                "role": "assistant",
                "content": [{"type": "toolCall", "id": "t", "name": "ls", "arguments": {"_raw": "x"}}],
            },
            {
                "recordType": "message",
                "seq": 3,
                "role": "toolResult",
                "toolCallId": "t",
                "isError": True,
                "content": BLOCKS,
            },
            {
                "recordType": "compaction",
                "seq": 4,
                "summary": "s",
                "firstKeptSeq": 2,
                "tokensBefore": 1,
                "readFiles": ["r"],
                "modifiedFiles": ["m"],
            },
        ],
        f"{ULID}/metadata.json": [
            {
                "id": ULID,
                "name": "cat",
                "createdAt": AT,
                "model": "m",
                "source": "interactive",
                "cronJobId": "j",
                "systemPromptOverride": "x",
                "metrics": {"promptTokens": 1},
            }
        ],
    },
    "archive": {
        "main/20260225T143000.jsonl": [{"ts": 1740000000, "role": "user", "content": "hi"}],
        "main/current.jsonl": [
            {
                "ts": 1740000100.5,
                "role": "system",
                "content": "Summary",
                "metadata": {"type": "compact", "previousSession": "20260225T143000.jsonl"},
            },
            {"ts": 1740000101, "role": "assistant", "content": BLOCKS, "toolCalls": [CALL]},
            {
                "ts": 1740000102,
                "role": "tool",
                "toolCallId": "t",
                "name": "ls",
                "isError": True,
                "content": "",
            },
            {
                "timestamp": AT,
                "role": "assistant",
                "tool_calls": [{"id": "u", "name": "ls", "arguments": {}}],
            },
            {"ts": 1740000103, "role": "user", "content": "hi"},
        ],
    },
    "rows": {
        "dump.json": [
            {
                "chat_sessions": [
                    {
                        "id": "a",
                        "status": "active",
                        "started_at": AT,
                        "updated_at": AT,
                        "ended_at": AT,
                        "summary": "s",
                        "compaction_summary": "c",
                    }
                ],
                "session_messages": [
                    {
                        "session_id": "a",
                        "sequence_number": 1,
                        "role": "user",
                        "content": "hi",
                        "created_at": AT,
                    },
                    {
                        "session_id": "a",
                        "sequence_number": 2,
                        "role": "assistant",
                        "content": "yes",
                        "metadata": {
                            "tool_history": [
                                {"type": "text", "text": "x"},
                                {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}},
                                {"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": True},
                            ]
                        },
                    },
                ],
            }
        ]
    },
    "nanobot": {
        "telegram_4.jsonl": [
            {
                "_type": "metadata",
                "key": "telegram:4",
                "created_at": AT,
                "updated_at": AT,
                "metadata": {"session_id": ULID, "name": "cat", "ended_at": AT},
                "last_consolidated": 1,
            },
            {"role": "user", "content": "hi", "timestamp": AT, "message_id": "m"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [CALL],
                "usage": {"prompt": 1, "completion": 2},
            },
            {"role": "tool", "content": BLOCKS, "tool_call_id": "t", "name": "ls", "is_error": True},
            {"role": "system", "kind": "overlay", "content": "s", "first_kept": 1, "tokens_before": 1},
            {"role": "system", "kind": "undo", "content": "", "from": 1},
        ]
    },
}
SAMPLES["nanobot-b64"] = SAMPLES["nanobot"]


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place within a value: its container, and its key or index."""
    for at in (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield value, at
        yield from places(value[at])


def spoiled(files: dict[str, list[Any]]) -> Iterator[dict[str, bytes]]:
    """Yield the files as they are, then with one odd value in place of each that stands there."""
    changed = copy.deepcopy(files)
    sound = {path: jsonl(*content) for path, content in changed.items()}
    yield sound
    for path, records in changed.items():
        for holder, at in places(records):
            held = holder[at]
            for odd in ODD:
                holder[at] = odd
                yield sound | {path: jsonl(*records)}
            holder[at] = held


def check(found: list[Conversation], name: str) -> None:
    """Have each conversation written as a transcript, and in the format ``name``."""
    for conversation in found:
        for line in conversation.lines:
            assert line["role"] in ROLES
            dump(line)
        FORMATS[name].encode(conversation)


@pytest.mark.parametrize("name", SOURCES)
def test_an_odd_value_anywhere_costs_itself_or_is_a_session_error(name: str) -> None:
    """What came in goes out again in each format in turn."""
    count = 0
    for files, written in zip(spoiled(SAMPLES[name]), cycle(FORMATS), strict=False):
        count += 1
        try:
            with suppress(SessionError):
                check(SOURCES[name].decode(files), written)
        except Exception as error:
            error.add_note(f"in {files!r}")
            raise
    assert count > 400


@pytest.mark.parametrize("codec", [pi, openclaw])
@pytest.mark.parametrize("kind", [[], {}, ["message"]])
def test_an_entry_whose_type_is_no_text_costs_itself(codec: Any, kind: object) -> None:
    (found,) = codec.decode({"s.jsonl": jsonl(*PI[:2], {"type": kind})})

    assert len(found.lines) == 1
    assert "records that are not entries" in found.lost


@pytest.mark.parametrize("number", [NAN, INF, -INF, 1e308, 10**400, True])
def test_a_price_or_count_that_is_no_number_is_none(number: object) -> None:
    answer = copy.deepcopy(PI[2])
    usage = {"input": number, "output": number, "cacheRead": 3, "cost": {"total": number}}
    answer["message"]["usage"] = usage  # type: ignore[index]

    (found,) = pi.decode({"s.jsonl": jsonl(*PI[:2], answer)})

    assert found.lines[-1]["usage"] == {"prompt": 3, "completion": 0}


@pytest.mark.parametrize("role", [[], {}, ["user"]])
def test_a_record_whose_role_is_no_text_costs_itself(role: object) -> None:
    record = {"recordType": "message", "content": BLOCKS[:1]}

    (found,) = overlay.decode(
        {f"{ULID}/session.jsonl": jsonl({**record, "role": "user"}, {**record, "role": role})}
    )

    assert [line["content"] for line in found.lines] == ["one"]
    assert found.lost == ("messages without a type",)
