"""The bodies of the queues: what is read, what is parked, and whose chat can be told."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.errors import Unreadable
from channels.message import (
    MAX_KEY_BYTES,
    MAX_TEXT_BYTES,
    Inbound,
    Outbound,
    read_inbound,
    read_outbound,
)

GOOD: dict[str, Any] = {
    "v": 1,
    "id": "t:1",
    "key": "telegram:5",
    "channel": "telegram",
    "chat_id": "5",
    "text": "hello",
}


def body(**changes: Any) -> bytes:
    fields = {k: v for k, v in (GOOD | changes).items() if v is not ...}
    return json.dumps(fields).encode()


def test_the_six_required_fields_are_enough() -> None:
    inbound, ignored = read_inbound(body())

    assert (inbound.id, inbound.key, inbound.text, inbound.kind) == ("t:1", "telegram:5", "hello", "message")
    assert ignored == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (body(v=2), "v is not 1"),
        (body(v=True), "v is not 1"),
        (body(v="1"), "v is not 1"),
        (body(text=...), "missing: text"),
        (body(id=5), "wrong type: id"),
        (body(text=None), "wrong type: text"),
        (body(key="telegram:6"), "key is not channel:chat_id"),
        (body(channel="Tele", key="Tele:5"), "channel is not"),
        (body(channel="telegram\n", key="telegram\n:5"), "channel is not"),
        (body(id="x" * 201), "over 200 bytes"),
        (body(id=""), "empty"),
        (body(text=""), "text is empty"),
        (body(text=" \n\u3000"), "text is empty"),
        (body(text="", kind="action"), "text is empty"),
        (body(text="", attachments="none"), "text is empty"),
        (body(text="ü" * (MAX_TEXT_BYTES // 2 + 1)), "over 1 MiB"),
    ],
)
def test_what_the_contract_refuses_is_unreadable_with_its_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_inbound(raw)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (body(text="x" * (MAX_TEXT_BYTES + 1)), True),
        (body(text=...), True),
        (body(v=7), True),
        (body(text=""), True),
        (body(key="telegram:6"), False),
        (body(id=5), False),
        (body(chat_id=...), False),
        (b"[]", False),
    ],
)
def test_the_chat_is_told_when_its_address_is_sound(raw: bytes, told: bool) -> None:
    with pytest.raises(Unreadable) as caught:
        read_inbound(raw)

    assert (caught.value.address is not None) == told


def test_an_optional_field_of_a_wrong_type_counts_as_absent() -> None:
    odd = {"quoted": {"text": 5}, "forwarded_from": ["Zed"], "part_of": 7}
    inbound, ignored = read_inbound(
        body(group="yes", sender={"id": 5}, meta=[], kind="shout", extra=1, **odd)
    )

    assert (inbound.group, inbound.sender.id, inbound.meta, inbound.kind) == (False, "", {}, "message")
    assert (inbound.quoted, inbound.forwarded_from, inbound.part_of) == (None, None, None)
    assert ignored == ["forwarded_from", "group", "kind", "meta", "part_of", "quoted", "sender"]


@pytest.mark.parametrize(
    "more",
    [
        {"attachments": [{"name": "a.png"}]},
        {"kind": "edit"},
        {"kind": "action", "meta": {"moved_to": "telegram:6"}},
    ],
)
def test_without_a_text_a_file_an_edit_and_a_moved_group_are_read(more: dict[str, Any]) -> None:
    """They say something all the same."""
    inbound, ignored = read_inbound(body(text="", **more))

    assert (inbound.text, ignored) == ("", [])


def test_a_text_of_exactly_1_mib_is_read() -> None:
    assert len(read_inbound(body(text="x" * MAX_TEXT_BYTES))[0].text) == MAX_TEXT_BYTES


@given(st.text().filter(str.strip), st.text(min_size=1))
def test_what_is_written_is_read_again(text: str, chat_id: str) -> None:
    inbound = Inbound(v=1, id="i", key=f"cli:{chat_id}", channel="cli", chat_id=chat_id, text=text)

    assert read_inbound(inbound.to_bytes()) == (inbound, [])


def test_outbound_round_trip_and_refusal() -> None:
    outbound = Outbound(id="t:1#reply", key="cli:a", channel="cli", chat_id="a", text="hi", in_reply_to="t:1")

    assert read_outbound(outbound.to_bytes()) == outbound
    with pytest.raises(Unreadable):
        read_outbound(b"{}")


ON_WEB = {"id": "web:x", "key": "web:a", "channel": "web", "chat_id": "a", "text": "hi"}
HUGE = 10**30


def on_web(**changes: Any) -> bytes:
    return body(**(ON_WEB | changes))


@pytest.mark.parametrize("beside", [{}, {"group": "yes"}])
def test_a_size_beyond_64_bit_counts_as_absent(beside: dict[str, Any]) -> None:
    """No line of a transcript, and no answer, could hold it; one parser takes it and the other does not."""
    inbound, ignored = read_inbound(on_web(attachments=[{"size": HUGE}], **beside))

    assert (inbound.text, inbound.group, inbound.attachments) == ("hi", False, [])
    assert ignored == ["attachments", *beside]


ADDRESSES = dict.fromkeys(["", "nobody", ":5", "web:", "Web:a", "web x:a", "a" * 33 + ":a"], False)
ADDRESSES |= {f"web:{'x' * MAX_KEY_BYTES}": False, "telegram:5:topic:7": True}


@pytest.mark.parametrize(("answer_to", "stands"), ADDRESSES.items())
def test_an_answer_to_that_names_no_chat_counts_as_absent(answer_to: str, stands: bool) -> None:
    inbound, ignored = read_inbound(on_web(answer_to=answer_to))

    assert (inbound.answer_to, ignored) == ((answer_to, []) if stands else (None, ["answer_to"]))


def test_a_key_of_1024_bytes_is_read_and_one_byte_more_is_not() -> None:
    """A longer one would not fit into the header of a message, and its letter would come for ever."""
    most = "ü" * ((MAX_KEY_BYTES - 4) // 2)

    assert read_inbound(on_web(key=f"web:{most}", chat_id=most))[0].chat_id == most
    with pytest.raises(Unreadable, match="key is over 1024 bytes") as refusal:
        read_inbound(on_web(key=f"web:{most}x", chat_id=f"{most}x"))
    assert refusal.value.address is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": "x" * (MAX_KEY_BYTES + 1)}, "key is over"),
        ({"id": "x" * 256}, "id is empty or over 255"),
        ({"id": ""}, "id is empty or over 255"),
        ({"v": 2}, "not an Outbound"),
    ],
)
def test_an_outbound_whose_names_no_queue_can_carry_is_unreadable(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_outbound(on_web(**changes))


numbers = st.integers() | st.integers(-HUGE, HUGE) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
OPTIONAL = (
    *("kind", "platform_id", "sender", "attachments", "group", "mentioned", "reply_to", "answer_to"),
    *("sent_at", "received_at", "source", "cron_job_id", "meta"),
)
files = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(("kind", "size", "ref"), values)))


@given(
    st.dictionaries(st.sampled_from(OPTIONAL), values, max_size=4), st.none() | files, st.sampled_from("ab")
)
def test_whatever_the_optional_fields_hold_the_message_is_read(
    fields: dict[str, Any], attachments: list[Any] | None, text: str
) -> None:
    """What is wrong counts as absent; what is kept can be written again."""
    fields = fields | {"text": text} | ({} if attachments is None else {"attachments": attachments})
    inbound, _ = read_inbound(json.dumps(GOOD | ON_WEB | fields).encode())

    assert inbound.text == text
    orjson.dumps([file.model_dump() for file in inbound.attachments])
    inbound.to_bytes()
