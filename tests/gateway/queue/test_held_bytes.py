"""How many bytes of bodies a process holds: within the bound, whatever comes, and each queue has some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.queue.held import HeldBytes

BOUND = 16_000
QUEUES = ("a", "b", "c", "d")
SIZES = st.integers(1, BOUND // 16 // len(QUEUES))


def _joined() -> HeldBytes:
    held = HeldBytes(BOUND)
    for queue in QUEUES:
        held.join(queue)
    return held


@given(st.lists(st.tuples(st.sampled_from(QUEUES), SIZES, st.booleans())))
def test_all_together_stay_within_the_bound(steps: list[tuple[str, int, bool]]) -> None:
    held = _joined()
    for queue, size, lets_go in steps:
        if lets_go:
            held.add(queue, -min(size, held.of(queue)))
        elif held.takes(queue, size):
            held.add(queue, size)

        assert held.total == sum(held.of(each) for each in QUEUES) <= BOUND


@given(st.lists(st.tuples(st.sampled_from(QUEUES[1:]), SIZES)), SIZES)
def test_each_queue_has_its_share_whatever_the_others_took(steps: list[tuple[str, int]], size: int) -> None:
    held = _joined()
    held.add("b", 15 * BOUND // 16)
    for queue, taken in steps:
        if held.takes(queue, taken):
            held.add(queue, taken)

    assert held.bound_of("a") >= BOUND // 16 // len(QUEUES)
    assert held.takes("a", size)


def test_a_queue_that_holds_nothing_takes_a_letter_of_any_size() -> None:
    held = _joined()
    held.add("b", BOUND)

    assert held.takes("a", 10 * BOUND)
    held.add("a", 10 * BOUND)
    assert not held.takes("a", 1)


def test_what_a_queue_held_is_free_once_it_left() -> None:
    held = _joined()
    held.add("a", BOUND)
    held.leave("a")

    assert held.total == 0
    assert held.takes("b", 15 * BOUND // 16)
