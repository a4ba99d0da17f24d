"""Transcripts such as nobody wrote on purpose, for property tests, and what every provider asks for."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

JUNK = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4) | st.just("\ud800")
IDS = st.sampled_from(["a", "b", "c", "", None, 5, "x|" * 40])
BLOCKS = st.sampled_from(
    [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "image_url"},
        {"type": "tool_use", "id": 1},
        {"text": 3},
        "loose",
        None,
        7,
    ]
)
CONTENT = JUNK | st.sampled_from(["", " \n", "text", {"a": 1}]) | st.lists(BLOCKS, max_size=3)
ARGUMENTS = JUNK | st.sampled_from(["{}", '{"a": 1}', "[1]", "{oops", '{"a": NaN}', {"a": {"b": 1}}])
FUNCTIONS = st.fixed_dictionaries(
    {},
    optional={"name": st.sampled_from(["ls", "read", "a.b c", "", None]), "arguments": ARGUMENTS},
)
CALLS = JUNK | st.lists(
    st.fixed_dictionaries({}, optional={"id": IDS, "function": FUNCTIONS | JUNK}) | JUNK, max_size=3
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "system", "function", None, 3, []]),
        "content": CONTENT,
        "tool_calls": CALLS,
        "tool_call_id": IDS,
        "name": st.sampled_from(["ls", "a.b", "", None, 3]),
        "reasoning_content": JUNK,
        "thinking_blocks": JUNK | st.just([{"type": "thinking", "thinking": "hm"}]),
    },
)
MESSAGES = st.lists(MESSAGE, max_size=12)

TURNS = st.sampled_from(["m0", "m1", "m2"])
PLACES = st.integers(-2, 24) | JUNK
RECORDS = st.fixed_dictionaries(
    {
        "role": st.just("system"),
        "kind": st.sampled_from(["overlay", "overlay", "undo", "undo", "note", "compact"]),
    },
    optional={"content": CONTENT, "first_kept": PLACES, "from": PLACES},
)

# What may stand in the place of any field, in a file of another program or one that was edited by hand.
TIMES = st.sampled_from(
    [
        "2026-01-31T09:15:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "soon",
        1e11,
        -1e9,
        10**400,
    ]
)
VALUES = st.one_of(
    JUNK,
    TURNS,
    TIMES,
    st.sampled_from([[], {}, ["m1"], ["m1", ["m1"]], {"a": 1}, [None], [7], [{}], [["m1"]], 1.5, 2**70]),
    st.sampled_from([float("nan"), float("inf"), -0.0, "m1", "user", "undo", "x" * 300]),
    CALLS,
    CONTENT,
)
FIELDS = st.sampled_from(
    [
        *("role", "content", "message_id", "part_of", "answers", "final", "stopped", "unsent", "interrupted"),
        *("tool_calls", "tool_call_id", "name", "is_error", "asks", "reasoning_content", "thinking_blocks"),
        *("kind", "from", "first_kept", "kept", "edits", "deleted", "metadata", "tokens_before"),
        *("compacted_turns", "replaced_tokens", "read_files", "modified_files", "tools_used"),
        *("usage", "timestamp", "created_at", "received_at", "queued_at", "traceparent", "typed", "group"),
        *("sender", "attachments", "platform_id", "text", "_type"),
    ]
)
_CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
_NOTE = {"role": "system", "kind": "note", "content": "new"}
_COMPACT = {"role": "system", "kind": "compact", "content": "s", "kept": 1}
_USAGE = {"prompt": 3, "completion": 1, "cost_usd": 0.1}
_SENDER = {"name": "Ada", "id": "1"}
SOUND = st.sampled_from(
    [
        *({"role": "user", "content": "asks?", "message_id": id_, "sender": _SENDER} for id_ in ("m0", "m1")),
        {"role": "user", "content": "more", "message_id": "m2", "part_of": "m1"},
        {"role": "user", "content": "file", "message_id": "m2", "attachments": [{"name": "a.txt"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL], "message_id": "m1", "usage": _USAGE},
        {"role": "tool", "content": "found", "tool_call_id": "a", "name": "read", "message_id": "m1"},
        *(
            {"role": "assistant", "content": "says", "message_id": id_, "final": True, "usage": _USAGE}
            for id_ in ("m0", "m1")
        ),
        {"role": "assistant", "content": "both", "message_id": "m1", "final": True, "answers": ["m1", "m2"]},
        {"role": "assistant", "content": "", "message_id": "m1", "final": True, "stopped": True},
        {"role": "system", "kind": "overlay", "content": "summary", "first_kept": 1, "message_id": "c"},
        {"role": "system", "kind": "undo", "content": "", "from": 1, "message_id": "m2"},
        {**_NOTE, "edits": "m1", "message_id": "m2"},
        {**_NOTE, "edits": "m1", "deleted": True},
        {**_COMPACT, "metadata": {"previousSession": "20260131T091500Z-01ARZ3NDEKTSV4RRFFQ69G5FAV.jsonl"}},
    ]
)
# Sound lines of which some fields are anything.
ODD_LINES = st.lists(
    st.builds(lambda line, odd: {**line, **odd}, SOUND, st.dictionaries(FIELDS, VALUES, max_size=3)),
    max_size=12,
)
_HEADS = st.sampled_from(["key", "created_at", "updated_at", "metadata", "last_consolidated", "_type"])
_INNER = st.sampled_from(
    [
        *("session_id", "reopened", "previous_session", "chat", "agent", "name", "model", "source"),
        *("parted_from", "answers_to", "resumed_at", "imported", "cron_job_id"),
    ]
)
_REOPENED = st.fixed_dictionaries({}, optional={"consolidated": PLACES | VALUES, "history_from": VALUES})
ODD_HEADS = st.builds(
    lambda offset, inner, opened, head: {
        "_type": "metadata",
        "key": "cli:x",
        "metadata": {**inner, **({"reopened": opened} if opened else {})},
        "last_consolidated": offset,
        **head,
    },
    PLACES,
    st.dictionaries(_INNER, VALUES, max_size=3),
    _REOPENED,
    st.dictionaries(_HEADS, VALUES, max_size=2),
)


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw an exchange: a question, calls side by side, results lost, doubled or mixed up, an answer."""
    turn = draw(TURNS)
    lines: list[dict[str, Any]] = [{"role": "user", "content": draw(CONTENT), "message_id": turn}]
    for _ in range(draw(st.integers(0, 2))):
        asked = draw(st.lists(st.sampled_from(["a", "b", "c", "a.b"]), min_size=1, max_size=3))
        calls = [{"id": i, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for i in asked]
        lines.append({"role": "assistant", "content": None, "tool_calls": calls, "message_id": turn})
        answered = draw(st.lists(st.sampled_from([*asked, *asked, "lost"]), max_size=4))
        lines += [
            {"role": "tool", "content": draw(LENGTHS), "tool_call_id": call_id, "name": "ls"}
            for call_id in answered
        ]
    if draw(st.booleans()):
        lines.append({"role": "assistant", "content": draw(CONTENT), "message_id": turn, "final": True})
    return lines


LENGTHS = st.sampled_from(["", "short", "l" * 200])
LINES = st.lists(
    rounds()
    | st.lists(RECORDS | MESSAGE | st.just({"_type": "other", "role": "user"}), min_size=1, max_size=2),
    max_size=7,
).map(lambda pieces: [line for piece in pieces for line in piece])


def assert_legal(messages: list[dict[str, Any]]) -> None:
    """Check what the strictest providers ask for."""
    waiting: list[str] = []
    ids: set[str] = set()
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for i, message in enumerate(messages):
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode("utf-8")
        role, content = message["role"], message["content"]
        if role == "tool":
            assert isinstance(content, str)
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "a call has no result before the next message"
        assert role in ("user", "assistant", "system")
        if role == "assistant":
            calls = message.get("tool_calls")
            assert (content is None and calls) or content.strip()
            assert calls is None or calls
            for call in calls or ():
                assert call["type"] == "function"
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                assert call["function"]["name"]
                assert set(call["function"]["name"]) <= set(
                    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
                )
                waiting.append(call["id"])
                as_sent = re.sub(r"[^A-Za-z0-9_-]", "_", call["id"])
                assert as_sent not in ids
                ids.add(as_sent)
            assert len(set(waiting)) == len(waiting)
        elif isinstance(content, str):
            assert content.strip() or i == last_user
        elif isinstance(content, list):
            assert all(isinstance(block["type"], str) for block in content)
    assert not waiting
