"""Whatever anybody puts into a queue, the daemon's loops go on and what cannot be read is set aside."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import strategies as st

from bench.application import settings as configured
from gateway.app.application import Application
from gateway.queue.mailbox import INBOUND
from tests.gateway.fed_gateway import PLATFORM, TOPICS, WEB, Foreign, Gateway, Odd, put_all
from tests.support.broker import Broker
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "failures", "The gateway survives any message that a program publishes, and parks the unreadable ones."
)

HUGE = 10**30
SIZE = b'{"v":1,"id":"web:x","key":"web:a","channel":"web","chat_id":"a","text":"hi","group":"yes",'
SIZE += b'"attachments":[{"size":1000000000000000000000000000000}]}'
SEQ = b'{"v":1,"id":"web:x#reply","key":"web:a","channel":"web","chat_id":"a","text":"hi",'
SEQ += b'"in_reply_to":"web:x","meta":{"seq":10000000000000000000000000}}'
NO_SLOT = b'{"v":1,"id":"w","do":"watch","slots":[1e400],"for_s":60}'
FAR_SLOT = b'{"v":1,"id":"w","do":"watch","slots":[1e300],"for_s":1e300}'
EVENT = b'{"v":1,"id":"e","key":"fake:ada","kind":"delta","in_reply_to":"x","seq":1e300,"text":{"a":1}}'
PROVEN = [Odd(INBOUND, SIZE), Odd(WEB, SEQ), Odd("control", NO_SLOT), Odd("control", FAR_SLOT)]
PROVEN += [Odd("events", EVENT)]
TRACED = b'{"v":1,"id":"web:t","key":"web:t","channel":"web","chat_id":"t","text":"hi"}'
# It fits a frame of 128 KiB, and no more beside it.
LARGE_TRACE = {"message_id": "web:t", "headers": {"key": "web:t", "tracestate": "x" * 131_000}}

_names = st.text(max_size=8)
_numbers = st.integers(-HUGE, HUGE) | st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = (
    *("id", "key", "channel", "chat_id", "text", "kind", "platform_id", "sender", "attachments", "group"),
    *("mentioned", "reply_to", "answer_to", "in_reply_to", "created_at", "sent_at", "source", "meta", "do"),
    *("slots", "for_s", "seq"),
)
_odd = st.dictionaries(st.sampled_from(_FIELDS), _values, max_size=5) | _values
_bodies = _odd.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20)


@st.composite
def _near(draw: st.DrawFn, where: str) -> bytes:
    """A letter whose required fields are sound, and whatever else."""
    kind = "web" if where != PLATFORM else "fake"
    sound = {"v": 1, "id": "web:n", "key": f"{kind}:a", "channel": kind, "chat_id": "a", "text": "hi"}
    optional = draw(st.dictionaries(st.sampled_from(_FIELDS[5:]), _values, max_size=4))
    meta = draw(st.none() | st.dictionaries(st.sampled_from(["seq", "moved_to", "x"]), _values))
    return json.dumps(optional | sound | ({} if meta is None else {"meta": meta})).encode()


@st.composite
def _letters(draw: st.DrawFn, *wheres: str) -> Odd:
    where = draw(st.sampled_from(wheres))
    return Odd(where, draw(_bodies | _near(where)))


_short = st.text(max_size=20)
_header = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=9).map(bytearray)
    | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))
    | st.just(Decimal("1.5")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_short, inner, max_size=3),
    max_leaves=5,
)
_HEADERS = (
    *("key", "reason", "from", "attempts", "parked_at", "x-delivery-count", "other"),
    *("traceparent", "tracestate"),
)
_properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": _short,
        "content_encoding": _short,
        "headers": st.dictionaries(st.sampled_from(_HEADERS), _header, max_size=4),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": _short,
        "reply_to": _short,
        "message_id": _short | st.just("x" * 255),
        "timestamp": st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC)),
        "message_type": _short,
        "app_id": _short,
    },
)
_WHERES = (INBOUND, WEB, PLATFORM, *TOPICS)


def _sound(odd: Odd) -> bool:
    """Say whether a body has all that is required, so that it may be answered."""
    try:
        fields = json.loads(odd.body)
    except ValueError:
        return False
    return isinstance(fields, dict) and {"v", "id", "key", "channel", "chat_id", "text"} <= fields.keys()


def _unreadable(odd: Odd) -> bool:
    return odd.where == "parked" or (odd.where not in TOPICS and not _sound(odd))


def _check(gateway: Gateway, odd: list[Odd], before: Counter[bytes]) -> None:
    """Every loop serves on, and every letter that cannot be read is among those set aside."""
    gateway.run(gateway.serves())
    wanted = Counter(each.body for each in odd if _unreadable(each))
    gateway.run(gateway.sets_aside(before + wanted))


def _limits(examples: int) -> Any:
    return drawn(
        examples,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("embedded")
    gateway = Gateway(lambda: Application(configured(folder)), folder)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[tuple[Gateway, Foreign]]:
    folder = tmp_path_factory.mktemp("rabbit")
    config = {"broker__url": broker.url, "broker__name": "odd", "broker__partitions": 1}
    gateway = Gateway(lambda: Application(configured(folder, **config)), folder)
    yield gateway, Foreign(broker.url, "odd")
    gateway.close()
    broker.delete_queues(["odd"])


_count = itertools.count()


@_limits(40)
@example(odd=PROVEN)
@given(odd=st.lists(_letters(*_WHERES), max_size=15))
def test_no_body_ends_a_loop_over_the_embedded_queue(embedded: Gateway, odd: list[Odd]) -> None:
    before = embedded.run(embedded.parked())
    embedded.run(put_all(embedded.mailbox, odd, lambda: next(_count)))

    _check(embedded, odd, before)
    embedded.run(embedded.replay_and_drop())


@_limits(40)
@example(odd=[(each, {}) for each in PROVEN], parked=[])
@example(odd=[(Odd(INBOUND, b"x"), {"message_id": "x" * 255, "headers": {"key": "k" * 70_000}})], parked=[])
@example(odd=[(Odd(INBOUND, TRACED), LARGE_TRACE)], parked=[])
@given(
    odd=st.lists(st.tuples(_letters(*_WHERES), _properties), max_size=15),
    parked=st.lists(st.tuples(_bodies, _properties), max_size=3),
)
def test_no_body_and_no_property_ends_a_loop_over_rabbitmq(
    rabbit: tuple[Gateway, Foreign],
    odd: list[tuple[Odd, dict[str, Any]]],
    parked: list[tuple[bytes, dict[str, Any]]],
) -> None:
    gateway, foreign = rabbit
    sent = [Odd(each.where, each.body, properties) for each, properties in odd]
    aside = [Odd("parked", body, properties) for body, properties in parked]
    before = gateway.run(gateway.parked())
    gateway.run(foreign.publish([*sent, *aside]))

    _check(gateway, [*sent, *aside], before)
    gateway.run(gateway.replay_and_drop())
