"""Every format, both ways: what it holds comes back equal, what it does not hold is said."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.interchange import annabelle, archive, overlay, rows
from session.interchange.conversation import BadFormat, Conversation, Line, calls_of, text_of
from session.interchange.formats import FORMATS
from session.transcript.history import is_record
from session.transcript.line import make_line, read_time
from session.transcript.transcript import decode, parse
from tests.session.interchange.test_interchange_odd import jsonl, records
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "sessions", "A conversion between formats keeps everything that the format can hold and reports the rest."
)

BEGAN = datetime(2026, 2, 11, 1, 14, 59, 755000, tzinfo=UTC)
ULID = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"
SAMPLES = Path(__file__).parent.parent.parent / "data" / "nanobot-samples"
EDGES = Path(__file__).parent.parent.parent / "data" / "edge-sessions"
# It looks like a session, and holds no message.
FOREIGN = "cli_e04-langobot.jsonl"
FILES = [
    path
    for path in (*sorted(SAMPLES.glob("*/sessions/*")), *sorted(EDGES.glob("*.jsonl")))
    if path.name != FOREIGN
]

texts = st.one_of(st.text(max_size=20), st.sampled_from(["", "✅ готово", "a\u2028b\x85c", "\ud800", "x\ny"]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5))
objects = st.dictionaries(st.text(max_size=5), scalars, max_size=3)
arguments = st.one_of(objects.map(json.dumps), st.sampled_from(["no json", "[1]", '{"_raw": 1}', ""]))


@st.composite
def rounds(draw: st.DrawFn, number: int) -> list[Line]:
    """One request of the model that calls one to three tools at once, and their results."""
    names = draw(st.lists(st.sampled_from(["read", "grep", "edit"]), min_size=1, max_size=3))
    calls = [
        {"id": f"c{number}.{n}", "type": "function", "function": {"name": name, "arguments": draw(arguments)}}
        for n, name in enumerate(names)
    ]
    lines = [make_line("assistant", draw(st.one_of(st.none(), texts)), "", tool_calls=calls)]
    for n, name in enumerate(names):
        failed = True if draw(st.booleans()) else None
        lines.append(
            make_line("tool", draw(texts), "", tool_call_id=f"c{number}.{n}", name=name, is_error=failed)
        )
    return lines


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Exchanges with and without tools, some unanswered, with summaries in between."""
    lines: list[Line] = []
    users: list[int] = []
    for number in range(draw(st.integers(0, 5))):
        users.append(len(lines))
        lines.append(make_line("user", draw(texts), "", sender={"id": "1"}, message_id=f"cli:{number}"))
        for n in range(draw(st.integers(0, 2))):
            lines += draw(rounds(number * 10 + n))
        if draw(st.integers(0, 4)):
            lines.append(make_line("assistant", draw(texts.filter(bool)), "", message_id=f"cli:{number}"))
        if draw(st.integers(0, 3)) == 0:
            kept = draw(st.sampled_from([*users, len(lines)]))
            lines.append(
                make_line(
                    "system",
                    draw(texts),
                    "",
                    kind="overlay",
                    first_kept=kept,
                    tokens_before=draw(st.integers(0, 9)),
                    compacted_turns=number,
                    read_files=["a.txt"],
                    modified_files=[],
                )
            )
    for n, line in enumerate(lines):
        line["timestamp"] = (BEGAN + timedelta(microseconds=1_234_567 * n)).isoformat(timespec="microseconds")
    return Conversation(
        tuple(lines),
        key="telegram:42",
        session_id=ULID,
        created_at=BEGAN,
        inner={"name": "cat", "model": "m", "summary": "short", "source": "interactive"},
        last_consolidated=draw(st.integers(0, len(lines))),
    )


def shape(line: Line, *, timed: bool) -> tuple[Any, ...]:
    """What all formats hold of a message: no content and an empty one are the same to a model."""
    at = read_time(line["timestamp"]) if timed else None
    result = (line.get("tool_call_id"), line.get("name"), line.get("is_error", False))
    return (line["role"], text_of(line["content"]), calls_of(line), result, at)


def shapes(lines: tuple[Line, ...] | list[Line], *, timed: bool = False) -> list[tuple[Any, ...]]:
    return [shape(line, timed=timed) for line in lines if not is_record(line)]


def overlays(lines: tuple[Line, ...]) -> list[Line]:
    return [line for line in lines if is_record(line)]


def back(name: str, conversation: Conversation) -> Conversation:
    (found,) = FORMATS[name].decode(FORMATS[name].encode(conversation).files)
    return found


def sent(conversation: Conversation) -> list[Line]:
    """The messages that the newest summary does not stand for."""
    newest = overlays(conversation.lines)[-1:]
    begin = newest[0]["first_kept"] if newest else 0
    return [line for line in conversation.lines[begin:] if not is_record(line)]


@drawn(100)
@given(conversations())
def test_nanobot_carries_everything(conversation: Conversation) -> None:
    for name in ("nanobot", "nanobot-b64"):
        found = back(name, conversation)

        assert (found.lines, found.key, found.session_id, found.inner) == (
            conversation.lines,
            conversation.key,
            ULID,
            conversation.inner,
        )
        assert (found.last_consolidated, found.created_at) == (conversation.last_consolidated, BEGAN)
        assert found.lost == FORMATS[name].encode(conversation).lost == ()


@drawn(100)
@given(conversations())
def test_overlay_carries_messages_times_and_every_summary(conversation: Conversation) -> None:
    found = back("overlay", conversation)

    assert shapes(found.lines, timed=True) == shapes(conversation.lines, timed=True)
    assert found.session_id == ULID
    assert found.inner == {"name": "cat", "model": "m", "source": "interactive"}
    kept = ("content", "first_kept", "tokens_before", "read_files", "modified_files", "timestamp")
    assert [[line[name] for name in kept] for line in overlays(found.lines)] == [
        [line[name] for name in kept] for line in overlays(conversation.lines)
    ]


@drawn(100)
@given(conversations())
def test_annabelle_carries_what_follows_the_newest_summary(conversation: Conversation) -> None:
    found = back("annabelle", conversation)

    assert shapes(found.lines) == shapes(sent(conversation))
    newest = overlays(conversation.lines)[-1:]
    assert [(line["content"], line["compacted_turns"]) for line in overlays(found.lines)] == [
        (line["content"], line["compacted_turns"]) for line in newest
    ]
    assert [line["first_kept"] for line in overlays(found.lines)] == [0] * len(newest)


@drawn(100)
@given(conversations())
def test_archive_carries_what_follows_the_newest_summary(conversation: Conversation) -> None:
    found = back("archive", conversation)

    assert shapes(found.lines, timed=True) == shapes(sent(conversation), timed=True)
    assert [(line["kind"], line["content"]) for line in overlays(found.lines)] == [
        ("compact", line["content"]) for line in overlays(conversation.lines)[-1:]
    ]


@drawn(100)
@given(conversations())
def test_rows_carry_all_messages_and_the_newest_summary(conversation: Conversation) -> None:
    found = back("rows", conversation)

    assert shapes(found.lines) == shapes(conversation.lines)
    assert (found.session_id, found.inner["summary"], found.created_at) == (ULID, "short", BEGAN)
    newest = [line["content"] for line in overlays(conversation.lines)[-1:] if line["content"]]
    assert [line["content"] for line in overlays(found.lines)] == newest


@drawn(100)
@given(conversations())
def test_what_is_left_behind_is_said(conversation: Conversation) -> None:
    users = sum(line["role"] == "user" for line in conversation.lines)
    for name in ("overlay", "annabelle", "archive", "rows"):
        lost = FORMATS[name].encode(conversation).lost

        assert ("the session's summary" in lost) == (name != "rows")
        assert any("memory holds" in words for words in lost) == (conversation.last_consolidated > 0)
        if name in ("overlay", "rows"):
            assert any("field sender" in words for words in lost) == (users > 0)
        else:
            gone = len(shapes(conversation.lines)) - len(sent(conversation))
            assert any("summary replaces" in words for words in lost) == (gone > 0)


def lines_of(*roles: str) -> tuple[Line, ...]:
    return tuple(make_line(role, f"{role} {n}", BEGAN.isoformat()) for n, role in enumerate(roles))


@pytest.mark.parametrize("name", ["overlay", "annabelle", "archive", "rows"])
def test_a_withdrawn_exchange_does_not_come_back(name: str) -> None:
    undo = make_line("system", "", BEGAN.isoformat(), kind="undo") | {"from": 2}
    lines = (*lines_of("user", "assistant", "user", "assistant"), undo, *lines_of("user"))
    conversation = Conversation(lines, key="cli:a", session_id=ULID)

    written = FORMATS[name].encode(conversation)
    (found,) = FORMATS[name].decode(written.files)

    assert [text_of(line["content"]) for line in found.lines] == ["user 0", "assistant 1", "user 0"]
    assert "messages that were withdrawn (2)" in written.lost


def test_images_are_said_to_stay_behind() -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    conversation = Conversation((make_line("user", content, BEGAN.isoformat()),), session_id=ULID)

    for name in ("overlay", "annabelle", "rows"):
        assert "blocks that are not text" in FORMATS[name].encode(conversation).lost
    assert back("archive", conversation).lines[0]["content"] == content


def test_a_compaction_of_annabelle_comes_in_as_an_overlay_line() -> None:
    data = records("""
{"type": "header", "chatId": "8304042211", "agentId": "annabelle", "createdAt": "2026-02-11T01:14:59.755Z"},
{"type": "compaction", "summary": "They asked.", "compactedTurns": 25, "timestamp": "2026-02-11T02:30:00Z"},
{"type": "turn", "user": "What emails do I have?", "assistant": "Twenty.",
 "timestamp": "2026-02-11T02:31:00Z", "toolsUsed": ["gmail"], "tokens": {"prompt": 12, "completion": 3},
 "messages": [
   {"role": "assistant", "content": [
     {"type": "tool-call", "toolCallId": "t", "toolName": "gmail", "input": {"n": 1}}]},
   {"role": "tool", "content": [
     {"type": "tool-result", "toolCallId": "t", "toolName": "gmail",
      "output": {"type": "json", "value": {"n": 20}}}]}]}
""")

    (found,) = annabelle.decode({"8304042211.jsonl": jsonl(*data)})

    assert found.session_id == "8304042211"
    summary, *lines = found.lines
    assert (summary["kind"], summary["first_kept"], summary["compacted_turns"]) == ("overlay", 0, 25)
    assert [(line["role"], line["content"]) for line in lines] == [
        ("user", "What emails do I have?"),
        ("assistant", None),
        ("tool", '{"n":20}'),
        ("assistant", "Twenty."),
    ]
    assert lines[-1]["usage"] == {"prompt": 12, "completion": 3}


def test_a_torn_line_and_unknown_records_of_an_overlay_session_cost_themselves() -> None:
    record = {"recordType": "message", "seq": 1, "role": "user", "content": [{"type": "text", "text": "hi"}]}
    data = jsonl(record, {"recordType": "later"}) + b'{"recordType": "mess'

    (found,) = overlay.decode({f"{ULID}/session.jsonl": data})

    assert [line["content"] for line in found.lines] == ["hi"]
    assert found.session_id == ULID
    assert found.lost == ("an unfinished line at the end", "records of type later")


def test_the_files_of_a_compacted_folder_come_oldest_first() -> None:
    old = jsonl({"ts": 1740000000, "role": "user", "content": "hi"})
    more = {"type": "compact", "previousSession": "20260225T143000.jsonl"}
    new = jsonl({"ts": 1740000100.5, "role": "system", "content": "Summary: hi", "metadata": more})

    found = archive.decode({"main/current.jsonl": new, "main/20260225T143000.jsonl": old})

    assert [one.origin for one in found] == ["main/20260225T143000.jsonl", "main/current.jsonl"]
    assert [one.session_id for one in found] == ["main", "main"]
    assert found[1].lines[0]["kind"] == "compact"
    assert found[1].lines[0]["metadata"]["previousSession"] == "20260225T143000.jsonl"


def test_each_session_of_a_document_keeps_its_own_rows_in_their_sequence() -> None:
    tables = {
        "chat_sessions": [{"id": "b", "started_at": "2026-02-02T00:00:00Z"}, {"id": "a", "status": "active"}],
        "session_messages": [
            {"session_id": "a", "sequence_number": 2, "role": "assistant", "content": "yes"},
            {"session_id": "b", "sequence_number": 1, "role": "user", "content": "other"},
            {"session_id": "a", "sequence_number": 1, "role": "user", "content": "there?", "metadata": None},
        ],
    }

    found = rows.decode({"dump.json": json.dumps(tables).encode()})

    assert [(one.session_id, [line["content"] for line in one.lines]) for one in found] == [
        ("a", ["there?", "yes"]),
        ("b", ["other"]),
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_something_else_is_refused(name: str) -> None:
    for data in (b"\x89PNG\r\n\x1a\n\0\0", b'{"a": 1}\n', b"[1, 2]\n", (EDGES / FOREIGN).read_bytes()):
        with pytest.raises(BadFormat) as caught:
            FORMATS[name].decode({"x.jsonl": data})

        assert caught.value.hint


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_nanobot_come_in_and_go_out_unchanged(path: Path) -> None:
    # Commands and their answers are no conversation.
    known = parse(path.read_bytes(), stem=path.stem)
    known.messages = [raw for raw in known.messages if not decode(raw).get("_command")]

    (found,) = FORMATS["nanobot"].decode({path.name: path.read_bytes()})
    written = FORMATS["nanobot-b64"].encode(found)

    assert len(found.lines) == len(known.messages)
    if known.damaged:
        assert found.lost
    ((name, data),) = written.files.items()
    assert base64.urlsafe_b64decode(name.removesuffix(".jsonl") + "==").decode() == found.key
    again = parse(data, stem="x")
    assert tuple(json.loads(raw) for raw in again.messages) == found.lines
    assert again.last_consolidated == known.last_consolidated


def test_the_key_is_read_from_either_kind_of_name() -> None:
    line = jsonl({"role": "user", "content": "hi"})
    b64 = base64.urlsafe_b64encode(b"telegram:-100555:topic:42").decode().rstrip("=")

    found = FORMATS["nanobot"].decode(
        {f"s/{b64}.jsonl": line, "s/telegram_12.jsonl": line, "s/heartbeat.jsonl": line}
    )

    assert [one.key for one in found] == ["telegram:-100555:topic:42", "telegram:12", ""]
