"""The codec: bytes to lines and back."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.transcript.line import decode, encode, read_time
from session.transcript.transcript import MAX_DEPTH, ROLES, make_line, parse, stamp
from tests.support.examples import drawn

HEAD = (
    b'{"_type": "metadata", "key": "cli:x", "created_at": "2026-02-25T08:42:53.023127", '
    b'"updated_at": "2026-02-25T08:42:53.023127", "metadata": {}, "last_consolidated": 0}\n'
)
NOW = datetime(2026, 3, 1, 12, 30, 15, 1, tzinfo=UTC)
AT = stamp(NOW, UTC)
texts = st.text(st.characters(codec=None, categories=None), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.builds(
    lambda role, content, extra: make_line(role, content, AT, extra=extra),
    st.sampled_from(ROLES),
    texts | st.none(),
    values,
)


def read(data: bytes) -> list[dict[str, Any]]:
    return [decode(raw) for raw in parse(data, stem="cli_x").messages]


def user(text: str, **fields: Any) -> bytes:
    return encode(make_line("user", text, AT, **fields)) + b"\n"


@given(st.lists(messages, max_size=5))
def test_what_is_written_is_read(lines: list[dict[str, Any]]) -> None:
    """Every message comes back as it was, lone surrogates and large numbers included."""
    data = HEAD + b"".join(encode(line) + b"\n" for line in lines)

    transcript = parse(data, stem="cli_x")

    assert [decode(raw) for raw in transcript.messages] == lines
    assert [json.loads(raw) for raw in transcript.messages] == lines
    assert not transcript.needs_checkpoint
    assert not transcript.torn


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever a file holds, reading ends, and what it keeps is legal."""
    transcript = parse(HEAD + data, stem="cli_x")

    for raw in transcript.messages:
        assert json.loads(raw.decode())["role"] in ROLES
    assert 0 <= transcript.keep <= transcript.size == len(HEAD + data)


@drawn(300)
@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_cut_anywhere_costs_the_unfinished_line(lines: list[dict[str, Any]], data: st.DataObject) -> None:
    """A file cut at any byte keeps all whole lines and is only torn, never damaged."""
    whole = HEAD + b"".join(encode(line) + b"\n" for line in lines)
    at = data.draw(st.integers(len(HEAD), len(whole)))

    transcript = parse(whole[:at], stem="cli_x")

    # The last newline may be missing.
    kept = sum(1 for end in _ends(whole) if end - 1 <= at) - 1
    assert [decode(raw) for raw in transcript.messages] == lines[:kept]
    assert not transcript.damaged
    assert not transcript.needs_checkpoint


def _ends(data: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(data) if byte == 10]


def test_fields_come_in_the_order_that_readers_expect() -> None:
    """Role, content and timestamp come first, calls next; None is left out, but content may be null."""
    line = make_line("assistant", None, AT, usage={"prompt": 1}, name=None, message_id="m", tool_calls=[{}])

    assert list(line) == ["role", "content", "timestamp", "tool_calls", "usage", "message_id"]
    assert line["content"] is None


def test_stamp_has_microseconds_and_offset() -> None:
    """A timestamp shows the zone's offset, and six digits even at a whole second."""
    assert (
        stamp(NOW.replace(microsecond=0), timezone(timedelta(hours=2))) == "2026-03-01T14:30:15.000000+02:00"
    )


@pytest.mark.parametrize(
    "line", [{"content": "x"}, {"role": "function"}, {"role": "user", "_type": "metadata"}]
)
def test_line_without_a_known_role_is_refused(line: dict[str, Any]) -> None:
    """Nothing is written that another reader would stumble over."""
    with pytest.raises(ValueError, match="role"):
        encode(line)


def test_numbers_that_json_lacks_become_null() -> None:
    """NaN and infinity never reach a file of ours."""
    line = json.loads(
        encode({"role": "user", "a": float("nan"), "b": [float("inf")]}), parse_constant=pytest.fail
    )

    assert line == {"role": "user", "a": None, "b": [None]}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"role": "user", "x": NaN}', "nan"),
        (b'{"role": "user", "x": 123456789012345678901234567890}', "123456789012345678901234567890"),
        (b'{"role": "user", "x": 1, "x": 2}', "2"),
        (b'{"role": "user", "x": "\\ud800"}', "\ud800"),
    ],
)
def test_odd_json_is_read_as_python_reads_it(raw: bytes, value: str) -> None:
    """What the fast parser refuses or rounds is read by the standard library, and keeps its bytes."""
    transcript = parse(HEAD + raw + b"\n", stem="cli_x")

    assert transcript.messages == [raw]
    assert str(decode(raw)["x"]) == value
    assert not transcript.damaged


def test_carriage_returns_blank_lines_and_nuls_are_no_damage() -> None:
    """White space of other systems and NUL blocks cost nothing."""
    data = (
        HEAD.replace(b"\n", b"\r\n") + b"\n\0\0\0\n" + user("a").replace(b"\n", b"\r\n") + b"  \n" + user("b")
    )

    transcript = parse(data, stem="cli_x")

    assert [line["content"] for line in read(data)] == ["a", "b"]
    assert not transcript.needs_copy


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_read(codec: str) -> None:
    """A file that an editor saved as UTF-16 is read, and kept beside before it is written."""
    transcript = parse((HEAD + user("ä")).decode().encode(codec), stem="cli_x")

    assert [decode(raw)["content"] for raw in transcript.messages] == ["ä"]
    assert transcript.damaged


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(opening: bytes) -> None:
    """A line too deep for other readers costs itself, quickly; one at the bound, and a text, is read."""
    closing = b"]" if opening == b"[" else b"}"

    def nested(depth: int) -> bytes:
        return b'{"role": "user", "x": ' + opening * depth + b"0" + closing * depth + b"}\n"

    started = time.process_time()

    assert len(read(HEAD + nested(MAX_DEPTH - 1))) == 1
    assert parse(HEAD + nested(100_000) + user("b"), stem="cli_x").damaged
    assert len(read(HEAD + nested(100_000) + user("b"))) == 1
    assert len(read(HEAD + user('[{"' * 5000))) == 1
    assert time.process_time() - started < 5


def test_records_run_together_are_taken_apart() -> None:
    """Whole records on one line are all kept; a torn one between them is lost alone."""
    data = HEAD + user("a")[:-1] + user("b")[:-1] + b'{"role": "user", "con' + user("c") + user("d")

    transcript = parse(data, stem="cli_x")

    assert [line["content"] for line in read(data)] == ["a", "b", "c", "d"]
    assert transcript.damaged


def test_torn_record_yields_no_piece_of_itself() -> None:
    """An object inside a torn record is no record."""
    torn = b'{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "x"}}], "content": "y\n'

    assert parse(HEAD + torn + user("a"), stem="cli_x").messages == [user("a")[:-1]]


def test_offsets_are_converted() -> None:
    """Records that nanobot alone counts move the offset and our own pointers; provider state does not."""
    stray, state = b'{"_type": "x"}\n', b'{"_type": "provider_state"}\n'
    overlay = encode(make_line("system", "s", AT, kind="overlay", first_kept=2)) + b"\n"
    undo = encode(make_line("system", "s", AT, kind="undo", **{"from": 1})) + b"\n"
    head = HEAD.replace(b'"last_consolidated": 0', b'"last_consolidated": 3')

    transcript = parse(head + state + stray + user("a") + user("b") + overlay + undo, stem="cli_x")

    assert transcript.last_consolidated == 2
    assert decode(transcript.messages[2])["first_kept"] == 1
    assert decode(transcript.messages[3])["from"] == 0
    assert parse(head + user("a") * 2 + stray, stem="cli_x").last_consolidated == 2
    assert parse(head + user("a") * 2 + state, stem="cli_x").last_consolidated == 0


@pytest.mark.parametrize("offset", ["true", "-1", "5", "1.0", "null", '"1"', "[]"])
def test_offset_that_cannot_be_meant_is_none(offset: str) -> None:
    """Only an integer within the messages hides anything."""
    head = HEAD.replace(b'"last_consolidated": 0', b'"last_consolidated": ' + offset.encode())

    assert parse(head + user("a") * 4, stem="cli_x").last_consolidated == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-03-01T12:00:00Z", 1772366400.0),
        ("2026-03-01T12:00:00.1234567+00:00", 1772366400.123456),
        (1772366400, 1772366400.0),
        (1772366400123, 1772366400.123),
        (True, None),
        ("", None),
        ("yesterday", None),
        (None, None),
        (1e300, None),
        (float("nan"), None),
    ],
)
def test_times_of_any_writer_are_read(value: object, expected: float | None) -> None:
    """ISO in every dialect, seconds and milliseconds; nonsense is no time."""
    time = read_time(value)

    assert (time and round(time.timestamp(), 6)) == expected


def test_exchange_is_found_by_its_id() -> None:
    """An id is found at its last occurrence, with the line that answers it, its own or a shared one."""
    lines = [
        make_line("user", "1", AT, message_id="a"),
        make_line("assistant", "2", AT, message_id="a", final=True),
        make_line("user", "3", AT, message_id="b"),
        make_line("user", "4", AT, message_id="c"),
        make_line("assistant", "5", AT, message_id="c", final=True, answers=["b", "c"]),
        make_line("user", "6", AT, message_id="a"),
        make_line("system", "7", AT, kind="overlay", message_id="z"),
    ]
    index = parse(HEAD + b"".join(encode(line) + b"\n" for line in lines), stem="cli_x").index

    def seen(id_: str) -> tuple[int, int, int | None, bool]:
        found = index.find(id_)
        assert found is not None
        return (found.start, found.stop, found.final, found.tail)

    assert seen("a") == (5, 6, None, True)
    assert seen("b") == (2, 3, 4, False)
    assert seen("c") == (3, 5, 4, False)
    assert index.find("z") is None
    assert index.find("") is None
    assert list(index.finals) == [1, 4]
    assert list(index.records) == [6]


@pytest.mark.parametrize("id_", ['q"uote', "back\\slash", "ünï", "a/b", "\ud800"])
def test_odd_ids_are_found(id_: str) -> None:
    """An id is found however its writer escaped it."""
    line = make_line("user", "x", AT, message_id=id_)
    for raw in (encode(line), json.dumps(line).encode(), json.dumps(line).replace("/", "\\/").encode()):
        found = parse(HEAD + raw + b"\n", stem="cli_x").index.find(id_)

        assert found is not None
        assert found.stop == 1
