"""The bodies of the queues: what is read, what is parked, and whose chat can be told."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.errors import Unreadable
from channels.message import MAX_TEXT_BYTES, Inbound, Outbound, read_inbound, read_outbound

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


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.sampled_from([*GOOD, "meta"]), c),
    ).map(lambda v: json.dumps(v).encode())
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """No body, however odd, raises anything but Unreadable."""
    with suppress(Unreadable):
        read_inbound(raw)


@given(st.text().filter(str.strip), st.text(min_size=1))
def test_what_is_written_is_read_again(text: str, chat_id: str) -> None:
    inbound = Inbound(v=1, id="i", key=f"cli:{chat_id}", channel="cli", chat_id=chat_id, text=text)

    assert read_inbound(inbound.to_bytes()) == (inbound, [])


def test_outbound_round_trip_and_refusal() -> None:
    outbound = Outbound(id="t:1#reply", key="cli:a", channel="cli", chat_id="a", text="hi", in_reply_to="t:1")

    assert read_outbound(outbound.to_bytes()) == outbound
    with pytest.raises(Unreadable):
        read_outbound(b"{}")
