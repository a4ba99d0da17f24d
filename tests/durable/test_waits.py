"""Whichever comes first ends the wait, and leaves nothing behind."""

from __future__ import annotations

import asyncio

from durable import first_of

WITHIN_S = 10.0


async def test_the_first_event_ends_the_wait_and_the_others_are_cancelled() -> None:
    """Afterwards no task is left but the test's own."""
    first, never = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(first.set)

    async with asyncio.timeout(WITHIN_S):
        await first_of(never.wait(), first.wait())
        await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_time_that_is_over_ends_the_wait() -> None:
    """A time below zero is over, too: the rest of a deadline may be."""
    async with asyncio.timeout(WITHIN_S):
        for timeout_s in (0.01, 0.0, -1.0):
            await first_of(asyncio.Event().wait(), timeout_s=timeout_s)


async def test_who_is_cancelled_leaves_no_wait_behind() -> None:
    """The waits end with the one that asked for them."""
    waiting = asyncio.create_task(first_of(asyncio.Event().wait()))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)

    assert waiting.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
