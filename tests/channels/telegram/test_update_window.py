"""Which updates Telegram may forget: none that is not confirmed, and none that came after such a one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from channels.telegram.polling import MAX_PENDING, UpdateWindow

Wait = Callable[[UpdateWindow], Coroutine[None, None, bool]]


def opened(*update_ids: int) -> UpdateWindow:
    window = UpdateWindow()
    window.admit(update_ids)
    return window


async def came_true(waiting: Coroutine[None, None, bool]) -> bool:
    """Say whether a wait of ten seconds ends well at once."""
    async with asyncio.timeout(5):
        return await waiting


def test_the_offset_stops_before_the_first_that_is_not_confirmed() -> None:
    window = UpdateWindow()
    assert window.offset() is None

    assert window.admit([7, 8, 9]) == {7, 8, 9}
    assert window.offset() == 7
    window.confirm(8)
    assert window.offset() == 7
    window.confirm(7)
    assert window.offset() == 9
    window.confirm(9)
    assert window.offset() == 10
    # Nothing came since: what was confirmed is still to be forgotten.
    assert window.offset() == 10


def test_ids_are_taken_in_the_order_of_their_coming() -> None:
    """After a quiet week they begin again anywhere."""
    window = opened(900)
    window.admit([3, 4])
    window.confirm(3)

    assert window.offset() == 900
    window.confirm(900)
    assert window.offset() == 4


def test_an_update_that_comes_again_is_no_other_one() -> None:
    """Whether it is under way or was confirmed since the last poll; one that was forgotten is new."""
    window = opened(7, 8)
    window.confirm(8)

    assert window.admit([7, 8, 9]) == {9}
    assert window.offset() == 7
    window.confirm(7)
    assert window.offset() == 9
    assert window.admit([7]) == {7}


def test_it_is_full_at_a_thousand_that_are_not_confirmed() -> None:
    assert MAX_PENDING == 1_000
    window = opened(*range(999))
    assert not window.full

    window.admit([998, 999])
    assert window.full
    window.confirm(5)
    window.confirm(5)
    assert not window.full
    window.admit([1_000])
    assert window.full


async def test_it_is_settled_while_nothing_is_under_way() -> None:
    window = UpdateWindow()
    assert await came_true(window.settle(10))
    window.admit([])
    assert await came_true(window.settle(10))

    window.admit([7, 8])
    assert not await window.settle(0.001)
    window.confirm(8)
    window.confirm(8)
    assert not await window.settle(0.001)
    window.confirm(7)
    assert await came_true(window.settle(10))


async def test_who_waits_hears_of_it_when_it_happens() -> None:
    window = opened(7)
    waiting = [asyncio.ensure_future(each) for each in (window.settle(10), window.move(10))]
    await asyncio.sleep(0)
    window.confirm(7)

    assert await asyncio.gather(*waiting) == [True, True]


async def test_it_moves_when_the_oldest_is_confirmed_or_nothing_is_left() -> None:
    """What was confirmed before the offset was taken is over; the next move is that of another one."""
    window = opened(7, 8)
    assert not await window.move(0.001)
    window.confirm(8)
    assert not await window.move(0.001)
    window.confirm(7)
    assert await came_true(window.move(10))

    assert window.offset() == 9
    assert not await window.move(0.001)
    window.admit([9, 10])
    window.confirm(9)
    assert await came_true(window.move(10))


async def test_the_last_one_moves_it_wherever_it_stands() -> None:
    window = opened(7, 8)
    window.confirm(7)
    assert window.offset() == 8
    window.admit([9])
    window.confirm(9)
    assert not await window.move(0.001)

    window.confirm(8)
    assert await came_true(window.move(10))


def test_what_was_never_here_cannot_be_confirmed() -> None:
    with pytest.raises(KeyError):
        opened(7).confirm(8)
