"""Odd values and other formats at every place of a file: what can be read is read, and all else is said."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest

from session.errors import SessionError
from session.interchange import annabelle, overlay, pi, rows
from session.interchange.conversation import BadFormat, Conversation
from session.interchange.formats import FORMATS, SOURCES
from session.transcript.line import ROLES, dump, make_line

AT = "2026-02-11T01:14:59.755Z"
ULID = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"
BLOCKS = [{"type": "text", "text": "one"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}]
NAN, INF = float("nan"), float("inf")
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**64, 10**400, 0.5, 1e308, NAN, INF, -INF),
    *("", "x", "\x00", "\ud800", "1" * 40, "user", "compaction"),
    *([], [[]], [None], {}, {"": {}}, {"type": []}, BLOCKS),
)


def records(text: str) -> list[Any]:
    """Read records as their programs write them, with AT, ULID and BLOCKS for what they stand for."""
    for name, value in (("AT", AT), ("ULID", ULID), ("BLOCKS", BLOCKS)):
        text = text.replace(f'"{name}"', json.dumps(value))
    found: list[Any] = json.loads(f"[{text}]")
    return found


PI = records("""
{"type": "session", "version": 3, "id": "5f3c", "timestamp": "AT", "modelId": "m"},
{"type": "message", "id": "a", "parentId": null, "timestamp": "AT",
 "message": {"role": "user", "content": "BLOCKS", "timestamp": 1}},
{"type": "message", "id": "b", "parentId": "a", "message": {"role": "assistant", "model": "m",
 "content": [{"type": "text", "text": "one"},
             {"type": "toolCall", "id": "t", "name": "ls", "arguments": {"path": "."}}],
 "usage": {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "cost": {"total": 0.5}}}},
{"type": "message", "id": "c", "parentId": "b",
 "message": {"role": "toolResult", "toolCallId": "t", "toolName": "ls", "isError": true,
             "content": "BLOCKS"}},
{"type": "compaction", "id": "d", "parentId": "c", "summary": "s", "firstKeptEntryId": "b",
 "firstKeptEntryIndex": 2, "tokensBefore": 7, "details": {"readFiles": ["r"], "modifiedFiles": ["m"]}},
{"type": "session_info", "id": "e", "parentId": "d", "name": "cat"},
{"type": "branch_summary", "id": "f", "parentId": "e", "summary": "elsewhere"},
{"type": "custom_message", "id": "g", "parentId": "f", "content": "BLOCKS"},
{"type": "message", "id": "h", "parentId": "g",
 "message": {"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 1}}
""")
KEYS = records('{"agent:main:telegram:direct:4": {"sessionId": "5f3c", "sessionFile": "s.jsonl"}}')
ANNABELLE = records("""
{"type": "header", "chatId": "4", "agentId": "a", "createdAt": "AT", "version": 1},
{"type": "compaction", "summary": "s", "compactedTurns": 2, "timestamp": "AT"},
{"type": "turn", "user": "hi", "assistant": "yes", "timestamp": "AT", "toolsUsed": ["ls"]},
{"type": "turn", "user": "hi", "assistant": "yes", "timestamp": "AT",
 "tokens": {"prompt": 1, "completion": 2}, "messages": [
   {"role": "user", "content": "hi"},
   {"role": "assistant", "content": [{"type": "text", "text": "x"},
     {"type": "tool-call", "toolCallId": "t", "toolName": "ls", "args": {"a": 1}}]},
   {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "t", "toolName": "ls", "isError": true,
     "output": {"type": "json", "value": {"n": 1}}}]}]}
""")
OVERLAY = records("""
{"recordType": "message", "seq": 1, "role": "user", "content": "BLOCKS", "timestamp": "AT"},
{"recordType": "message", "seq": 2, "role": "assistant",
 "content": [{"type": "toolCall", "id": "t", "name": "ls", "arguments": {"_raw": "x"}}]},
{"recordType": "message", "seq": 3, "role": "toolResult", "toolCallId": "t", "isError": true,
 "content": "BLOCKS"},
{"recordType": "compaction", "seq": 4, "summary": "s", "firstKeptSeq": 2, "tokensBefore": 1,
 "readFiles": ["r"], "modifiedFiles": ["m"]}
""")
METADATA = records("""
{"id": "ULID", "name": "cat", "createdAt": "AT", "model": "m", "source": "interactive", "cronJobId": "j",
 "systemPromptOverride": "x", "metrics": {"promptTokens": 1}}
""")
ARCHIVE = records("""
{"ts": 1740000100.5, "role": "system", "content": "Summary",
 "metadata": {"type": "compact", "previousSession": "20260225T143000.jsonl"}},
{"ts": 1740000101, "role": "assistant", "content": "BLOCKS",
 "toolCalls": [{"id": "t", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
{"ts": 1740000102, "role": "tool", "toolCallId": "t", "name": "ls", "isError": true, "content": ""},
{"timestamp": "AT", "role": "assistant", "tool_calls": [{"id": "u", "name": "ls", "arguments": {}}]},
{"ts": 1740000103, "role": "user", "content": "hi"}
""")
ROWS = records("""
{"chat_sessions": [{"id": "a", "status": "active", "started_at": "AT", "updated_at": "AT", "ended_at": "AT",
   "summary": "s", "compaction_summary": "c"}],
 "session_messages": [
   {"session_id": "a", "sequence_number": 1, "role": "user", "content": "hi", "created_at": "AT"},
   {"session_id": "a", "sequence_number": 2, "role": "assistant", "content": "yes", "metadata":
     {"tool_history": [{"type": "text", "text": "x"},
       {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}},
       {"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": true}]}}]}
""")
NANOBOT = records("""
{"_type": "metadata", "key": "telegram:4", "created_at": "AT", "updated_at": "AT",
 "metadata": {"session_id": "ULID", "name": "cat", "ended_at": "AT"}, "last_consolidated": 1},
{"role": "user", "content": "hi", "timestamp": "AT", "message_id": "m"},
{"role": "assistant", "content": null, "usage": {"prompt": 1, "completion": 2},
 "tool_calls": [{"id": "t", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
{"role": "tool", "content": "BLOCKS", "tool_call_id": "t", "name": "ls", "is_error": true},
{"role": "system", "kind": "overlay", "content": "s", "first_kept": 1, "tokens_before": 1},
{"role": "system", "kind": "undo", "content": "", "from": 1}
""")
# By format: its files, each a list of records; the first one is what it is told by.
SAMPLES: dict[str, dict[str, list[Any]]] = {
    "pi": {"s.jsonl": PI},
    "openclaw": {"s.jsonl": PI, "sessions.json": KEYS},
    "annabelle": {"4.jsonl": ANNABELLE},
    "overlay": {f"{ULID}/session.jsonl": OVERLAY, f"{ULID}/metadata.json": METADATA},
    "archive": {"main/current.jsonl": ARCHIVE, "main/20260225T143000.jsonl": ARCHIVE[-1:]},
    "rows": {"dump.json": ROWS},
    "nanobot": {"telegram_4.jsonl": NANOBOT},
}
SAMPLES["nanobot-b64"] = SAMPLES["nanobot"]
TURN = ANNABELLE[2]


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


@pytest.mark.parametrize("number", [NAN, INF, -INF, 1e308, 10**400, True])
def test_a_price_or_count_that_is_no_number_is_none(number: object) -> None:
    answer = copy.deepcopy(PI[2])
    usage = {"input": number, "output": number, "cacheRead": 3, "cost": {"total": number}}
    answer["message"]["usage"] = usage  # type: ignore[index]

    (found,) = pi.decode({"s.jsonl": jsonl(*PI[:2], answer)})

    assert found.lines[-1]["usage"] == {"prompt": 3, "completion": 0}


@pytest.mark.parametrize("looks", ["pi", "annabelle", "nanobot", "overlay", "rows"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_file_of_another_format_is_refused_with_what_it_looks_like(name: str, looks: str) -> None:
    """One line that fits by chance, among a thousand, makes no session."""
    if looks == name or {looks, name} in (
        {"nanobot", "nanobot-b64"},
        {"pi", "openclaw"},
        {"nanobot", "archive"},
    ):
        return
    data = jsonl(*next(iter(SAMPLES[looks].values())) * (500 if looks != "rows" else 1))
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


LISTED = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, {"type": "image"}, 7]
OTHER = {"text": "one"}
BLOCKS_LOST, TEXT_LOST = ("blocks that are not text (2)",), ("contents that are not text",)
HI = {"role": "user", "content": "hi"}
CHAIN = [{"role": "user", "content": LISTED[:2]}, {"role": "assistant", "content": LISTED[:1]}]
RULE = [{"role": "system", "content": "be kind"}]
PARTS = {"role": "tool", "content": [{"type": "tool-result", "result": "x"}, {"type": "later"}, 7]}


def document(*messages: Any, **session: Any) -> bytes:
    """A document of rows with one session, whose ULID is ``a`` unless another is given."""
    return jsonl({"chat_sessions": [{"id": "a", **session}], "session_messages": messages})


def turn(**fields: Any) -> bytes:
    return jsonl({"type": "turn", "user": "hi", "assistant": "yes", "timestamp": AT, **fields})


@pytest.mark.parametrize(
    ("codec", "data", "texts", "lost"),
    [
        (rows, document({**HI, "session_id": "a", "content": LISTED}), ["one\ntwo"], BLOCKS_LOST),
        (rows, document({**HI, "session_id": "a", "content": OTHER}), [""], TEXT_LOST),
        (rows, document({**HI, "session_id": "a", "content": True}), [""], TEXT_LOST),
        # An id may be a number in one table and a text in the other.
        (
            rows,
            document(*({**HI, "session_id": id_} for id_ in ("7", 7.0, 8, None, [7])), HI, id=7),
            ["hi", "hi"],
            ("messages without a session (4)",),
        ),
        (rows, document(compaction_summary=LISTED), ["one\ntwo"], BLOCKS_LOST),
        (annabelle, turn(user=LISTED), ["one\ntwo", "yes"], BLOCKS_LOST),
        (annabelle, turn(assistant=LISTED, messages=[]), ["hi", "one\ntwo"], BLOCKS_LOST),
        (annabelle, turn(user=LISTED, messages=RULE), ["one\ntwo", "be kind", "yes"], BLOCKS_LOST),
        (annabelle, turn(user=OTHER, assistant=7), ["", ""], ("contents that are not text (2)",)),
        (annabelle, turn(user=LISTED[:2], assistant=LISTED[:1], messages=CHAIN), [LISTED[:2], "one"], ()),
        (annabelle, jsonl({"type": "turn", "messages": [{**HI, "content": OTHER}]}), [""], TEXT_LOST),
        (
            annabelle,
            jsonl(*({"type": "turn", "messages": chain} for chain in ([PARTS], HI))),
            ["x"],
            ("messages without a type", "parts of type later", "parts without a type"),
        ),
        (overlay, jsonl({"recordType": "message", **HI, "content": OTHER}), [""], TEXT_LOST),
        (pi, jsonl({"type": "message", "message": {**HI, "content": OTHER}}), [""], TEXT_LOST),
        (pi, jsonl(*PI[:2], {"type": ["message"]}), ["one"], ("records that are not entries",)),
        (SOURCES["openclaw"], jsonl(*PI[:2], {"type": {}}), ["one"], ("records that are not entries",)),
        (
            overlay,
            jsonl(*({"recordType": "message", **HI, "role": role} for role in ("user", []))),
            ["hi"],
            ("messages without a type",),
        ),
    ],
)
def test_what_stands_in_another_form_is_read_as_far_as_it_goes_and_else_said(
    codec: Any, data: bytes, texts: list[Any], lost: tuple[str, ...]
) -> None:
    (found,) = codec.decode({"s.jsonl" if codec is not rows else "dump.json": data})

    assert [line["content"] for line in found.lines] == texts
    assert found.lost == lost


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


def test_messages_without_any_session_are_refused() -> None:
    """Nothing would be imported, and nobody would hear of it."""
    tables = {"chat_sessions": ["no session"], "session_messages": [{"role": "user", "content": "hi"}]}

    with pytest.raises(BadFormat) as caught:
        rows.decode({"dump.json": json.dumps(tables).encode()})

    assert caught.value.hint
    assert rows.decode({"dump.json": b'{"chat_sessions": [], "session_messages": []}'}) == []
