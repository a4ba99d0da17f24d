"""How many letters may be out: four times as many, as far as bytes and the protocol allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.queue.held import BYTES_MAX, HeldBytes
from gateway.queue.rabbitmq.window import LETTER_BYTES, cost_of, next_window


def test_a_short_letter_costs_what_its_objects_take() -> None:
    assert cost_of(b"") == cost_of(b"x" * 1024) == LETTER_BYTES == 1024
    assert cost_of(b"x" * 1025) == 1025


@pytest.mark.parametrize(
    ("window", "cost", "all_cost", "following"),
    [
        # Room enough: four times as many, up to what the protocol has words for.
        (1_000, 1_000 * 1024, 1_000 * 1024, 4_000),
        (4_000, 0, 0, 16_000),
        (16_000, 0, 0, 64_000),
        (65_285, 0, 0, 65_535),
        # Fewer than 250 more are not worth the question.
        (65_286, 0, 0, 65_286),
        (65_535, 0, 0, 65_535),
        # Further letters are taken to be as large as these are.
        (1_000, 1_000 * 2**16, 0, 2_000 + 24),
        (1_000, 1_000 * 4096, BYTES_MAX - 250 * 4096, 1_250),
        (1_000, 1_000 * 4096, BYTES_MAX - 250 * 4096 + 1, 1_000),
        (1_000, 1_000 * 4096, BYTES_MAX, 1_000),
        (1_000, 1_000 * 4096, BYTES_MAX * 2, 1_000),
        # A letter takes a kilobyte at least, whatever was counted.
        (1_000, 1_000, BYTES_MAX - 300 * 1024, 1_300),
        (0, 5_000 * 1024, 0, 0),
        (1, 2**17, 0, 4),
        (1, 2**17, BYTES_MAX - 200 * 2**17, 1),
    ],
)
def test_the_window_after_a_full_one(window: int, cost: int, all_cost: int, following: int) -> None:
    assert next_window(window, cost, all_cost) == following


BOUND = 16_000
QUEUES = ("a", "b", "c", "d")
SHARE = BOUND // 16 // len(QUEUES)
STEPS = st.tuples(
    st.sampled_from(QUEUES), st.integers(1, SHARE), st.sampled_from(["take", "let go", "leave"])
)


@given(st.lists(STEPS))
def test_all_queues_stay_within_the_bytes_and_each_has_its_share(steps: list[tuple[str, int, str]]) -> None:
    held = HeldBytes(BOUND)
    for queue in QUEUES:
        held.join(queue)
    held.add("b", BOUND - BOUND // 16)
    for queue, size, does in steps:
        if does == "leave":
            held.leave(queue)
            held.join(queue)
        elif does == "let go":
            held.add(queue, -min(size, held.of(queue)))
        elif held.takes(queue, size):
            held.add(queue, size)

        assert held.total == sum(held.of(each) for each in QUEUES) <= BOUND
        assert all(held.bound_of(each) >= SHARE for each in QUEUES)
