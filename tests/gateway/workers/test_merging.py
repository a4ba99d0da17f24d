"""What several processes count, added up as one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from gateway.workers.line import encoded
from gateway.workers.merging import lasting, merged, packed


def families(turns: int, oldest: float = 0.0, left: float = 10.0) -> list[Metric]:
    registry = CollectorRegistry()
    Counter("chat_gateway_turns", "Turns.", ["result"], registry=registry).labels("reply").inc(turns)
    Gauge("chat_gateway_lane_letters", "Letters.", registry=registry).set(turns)
    Gauge("chat_gateway_partition_oldest_seconds", "Age.", ["partition"], registry=registry).labels("00").set(
        oldest
    )
    Gauge("chat_gateway_limit_left", "Left.", ["limit"], registry=registry).labels("cost").set(left)
    Histogram("chat_gateway_turn_seconds", "Time.", buckets=(1.0, 2.0), registry=registry).observe(1.5)
    Gauge("process_open_fds", "Descriptors.", registry=registry).set(7)
    return list(registry.collect())


def values(found: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(s.labels.items())): s.value for each in found for s in each.samples}


def test_counts_are_added_and_ages_are_not() -> None:
    """The sum of what was counted, the oldest age, the least that is left; each process under its number."""
    found = values(
        merged(families(1, 3.0, 10.0), [(1, packed(families(2, 9.0, 4.0))), (2, packed(families(4)))])
    )

    assert found["chat_gateway_turns_total", (("result", "reply"),)] == 7
    assert found["chat_gateway_lane_letters", ()] == 7
    assert found["chat_gateway_partition_oldest_seconds", (("partition", "00"),)] == 9.0
    assert found["chat_gateway_limit_left", (("limit", "cost"),)] == 4.0
    assert found["chat_gateway_turn_seconds_bucket", (("le", "2.0"),)] == 3
    assert found["chat_gateway_turn_seconds_bucket", (("le", "+Inf"),)] == 3
    assert [found["process_open_fds", label] for label in ((), (("worker", "1"),), (("worker", "2"),))] == [
        7
    ] * 3


def test_what_an_ended_process_counted_stays_and_what_it_held_does_not() -> None:
    """A counter never goes back when a worker is replaced; its letters are gone with it."""
    found = values(merged(families(1), [(1, packed(families(2)))], [lasting(packed(families(10)))]))

    assert found["chat_gateway_turns_total", (("result", "reply"),)] == 13
    assert found["chat_gateway_lane_letters", ()] == 3
    assert ("process_open_fds", (("worker", "0"),)) not in found


def test_a_lone_surrogate_and_an_infinity_go_over_the_line() -> None:
    """A key may hold what UTF-8 has not, and a histogram ends in infinity."""
    assert encoded({"key": "web:\ud800", "le": float("inf")}).isascii()
