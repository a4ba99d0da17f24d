"""Whoever goes from the embedded queue to a broker hears of what is left in it, which nobody would take."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.doctor.broker import of_left
from gateway.doctor.finding import Check
from gateway.queue.embedded.left import CURE, left_behind
from gateway.queue.mailbox import INBOUND, ParkedAs
from tests.contracts.posts import ADA, BOB, post
from tests.gateway.embedded_place import opened


async def left(state: Path, *, waiting: int, parked: int) -> None:
    """Leave a queue with so many letters."""
    async with opened(state) as mailbox:
        for number in range(parked):
            await mailbox.put(post(BOB, number))
        async with mailbox.take(INBOUND) as letters:
            for _ in range(parked):
                await mailbox.park(await anext(aiter(letters)), ParkedAs(BOB, "refused", 1))
        for number in range(waiting):
            await mailbox.put(post(ADA, number))


@pytest.mark.parametrize(
    ("waiting", "parked", "said"),
    [(2, 1, "2 waiting letters and 1 parked lie in "), (1, 0, "1 waiting letter lies in "), (0, 0, "")],
)
async def test_letters_in_it_are_told(tmp_path: Path, waiting: int, parked: int, said: str) -> None:
    await left(tmp_path, waiting=waiting, parked=parked)
    found = left_behind(tmp_path)

    assert found.startswith(f"{said}{tmp_path / 'gateway.db'}, the embedded queue" if said else "")
    assert bool(found) == bool(said)
    assert list(of_left(tmp_path)) == ([Check("embedded queue", "fail", found, CURE)] if said else [])


async def test_one_that_is_worked_on_is_not_left(tmp_path: Path) -> None:
    """Its daemon has the file to itself; nor is anything left where there never was a queue."""
    assert left_behind(tmp_path) == ""
    async with opened(tmp_path) as mailbox:
        await mailbox.put(post(ADA, 1))

        assert left_behind(tmp_path) == ""
