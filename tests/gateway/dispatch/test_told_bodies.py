"""What goes over control and events: one form, written and read in one place, and no harm from any other."""

from __future__ import annotations

import orjson
import pytest

from channels.errors import Unreadable
from channels.message import Inbound
from gateway.dispatch.control_order import ControlOrder, StatusOrder, StopOrder, WatchOrder, read_order
from gateway.dispatch.events import Event, read_event

LETTER = Inbound(v=1, id="web:1", key="web:a", channel="web", chat_id="a", text="/status")
WATCH = {"v": 1, "id": "w", "do": "watch", "slots": [3], "for_s": 60}


@pytest.mark.parametrize(
    "order",
    [
        StopOrder(id="stop:1", key="web:a"),
        StopOrder(id="stop:1", key="web:a", only="web:1"),
        StopOrder(id="web:1", key="web:a", letter=LETTER),
        StatusOrder(id="web:1", key="web:a", letter=LETTER),
        WatchOrder(id="w", slots="all", for_s=60),
        WatchOrder(id="w", slots=[0, 3], for_s=60.5, draft="web:a"),
    ],
)
def test_an_order_is_read_as_it_was_written(order: ControlOrder) -> None:
    """Each kind, with all that it holds."""
    assert read_order(order.to_bytes()) == order


def test_the_form_of_an_order_is_the_documented_one() -> None:
    """Other programs read it: no field more, none less."""
    stop, watch = StopOrder(id="s", key="web:a"), WatchOrder(id="w", slots=[3], for_s=60)

    assert orjson.loads(stop.to_bytes()) == {"v": 1, "id": "s", "do": "stop", "key": "web:a"}
    assert orjson.loads(watch.to_bytes()) == WATCH


def test_a_stop_whose_letter_cannot_be_read_stops_all_the_same() -> None:
    """The letter only says how to answer."""
    body = b'{"v":1,"id":"s","do":"stop","key":"web:a","letter":{"v":7}}'
    assert read_order(body) == StopOrder(id="s", key="web:a")


def test_an_order_of_a_newer_daemon_is_no_fault() -> None:
    """An unknown kind is passed over, an unknown field is left out."""
    assert read_order(b'{"v":1,"id":"x","do":"dance"}') is None
    assert read_order(orjson.dumps(WATCH | {"loudly": True})) == WatchOrder(id="w", slots=[3], for_s=60)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"do":"stop"}',
        orjson.dumps(WATCH | {"slots": [-1]}),
        orjson.dumps(WATCH | {"slots": [999]}),
        orjson.dumps(WATCH | {"slots": "some"}),
        orjson.dumps(WATCH | {"for_s": "long"}),
        b'{"v":1,"id":"s","do":"status","letter":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_what_is_no_order_is_unreadable(body: bytes) -> None:
    """One error for whatever is wrong with it."""
    with pytest.raises(Unreadable):
        read_order(body)


def test_an_event_is_read_as_it_was_written() -> None:
    """Its form is the documented one, ``in_reply_to`` included where it answers nothing."""
    event = Event(id="e", key="web:a", kind="reply", seq=7, text="hello")

    assert read_event(event.to_bytes()) == event
    fields = {"v": 1, "id": "e", "key": "web:a", "in_reply_to": None, "kind": "reply", "seq": 7}
    assert orjson.loads(event.to_bytes()) == fields | {"text": "hello"}


@pytest.mark.parametrize("seq", [b"1e300", b"1.0", b"true", b"null", b"10000000000000000000000000"])
def test_an_event_without_a_seq_that_can_be_stored_is_none(seq: bytes) -> None:
    """A client resumes from it."""
    assert read_event(b'{"key":"web:a","kind":"reply","seq":' + seq + b"}") is None


def test_an_optional_field_of_a_wrong_type_counts_as_left_out() -> None:
    """The text of a stranger's event may be anything."""
    read = read_event(b'{"key":"web:a","kind":"reply","seq":1,"id":7,"in_reply_to":[],"text":{"a":1}}')

    assert read == Event(key="web:a", kind="reply", seq=1)
