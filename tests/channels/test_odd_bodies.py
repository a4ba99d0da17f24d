"""Bodies that pass one reading and break another: each is read, or refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.errors import Unreadable
from channels.message import MAX_KEY_BYTES, key_fault, read_inbound, read_outbound

GOOD: dict[str, Any] = {
    "v": 1,
    "id": "web:x",
    "key": "web:a",
    "channel": "web",
    "chat_id": "a",
    "text": "hi",
}
HUGE = 10**30


def body(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def test_a_size_beyond_64_bit_beside_another_wrong_field_counts_as_absent() -> None:
    """A number that one parser takes and the other does not takes no letter with it."""
    inbound, ignored = read_inbound(body(group="yes", attachments=[{"size": HUGE}]))

    assert (inbound.text, inbound.group, inbound.attachments) == ("hi", False, [])
    assert ignored == ["attachments", "group"]


def test_a_size_beyond_64_bit_alone_counts_as_absent() -> None:
    """No line of a transcript, and no answer, could hold it."""
    inbound, ignored = read_inbound(body(attachments=[{"size": HUGE}]))

    assert (inbound.attachments, ignored) == ([], ["attachments"])


@pytest.mark.parametrize(
    "answer_to",
    ["", "nobody", ":5", "web:", "Web:a", "web x:a", "a" * 33 + ":a", f"web:{'x' * MAX_KEY_BYTES}"],
)
def test_an_answer_to_that_names_no_chat_counts_as_absent(answer_to: str) -> None:
    inbound, ignored = read_inbound(body(answer_to=answer_to))

    assert (inbound.answer_to, ignored) == (None, ["answer_to"])


def test_an_answer_to_that_names_a_chat_stands() -> None:
    inbound, ignored = read_inbound(body(answer_to="telegram:5:topic:7"))

    assert (inbound.answer_to, ignored) == ("telegram:5:topic:7", [])


def test_a_key_of_1024_bytes_is_read_and_one_byte_more_is_not() -> None:
    """A longer one would not fit into the header of a message, and its letter would come for ever."""
    most = "ü" * ((MAX_KEY_BYTES - 4) // 2)

    assert read_inbound(body(key=f"web:{most}", chat_id=most))[0].chat_id == most
    with pytest.raises(Unreadable, match="key is over 1024 bytes") as refusal:
        read_inbound(body(key=f"web:{most}x", chat_id=f"{most}x"))
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
        read_outbound(body(**changes))


def test_a_key_fault_names_what_is_wrong() -> None:
    assert key_fault("web:a") == ""
    assert "channel:chat_id" in key_fault("web")
    assert "1024 bytes" in key_fault("web:" + "x" * MAX_KEY_BYTES)


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
    inbound, _ = read_inbound(json.dumps(GOOD | fields).encode())

    assert inbound.text == text
    orjson.dumps([file.model_dump() for file in inbound.attachments])
    inbound.to_bytes()


@given(values)
def test_any_json_is_read_or_refused(value: Any) -> None:
    """Neither reading ever fails in another way."""
    raw = json.dumps(value).encode()
    for read in (read_inbound, read_outbound):
        with pytest.raises(Unreadable):
            read(raw)
