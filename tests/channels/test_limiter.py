"""The limiter: never faster than the platform allows, whoever sends, and no chat waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from channels.limiter import Limiter, Rate, Rates, rates_of
from tests.channels.ticking import Ticking
from tests.support.until import until

TELEGRAM = rates_of("telegram")


def limiter(time: Ticking, rates: Rates = TELEGRAM) -> Limiter:
    return Limiter(rates, clock=time, sleep=time.sleep)


@pytest.fixture
def time() -> Ticking:
    return Ticking()


@pytest.fixture
def each(time: Ticking) -> Limiter:
    return limiter(time)


async def sends(each: Limiter, time: Ticking, chat: str, count: int, *, group: bool = False) -> list[float]:
    """Send ``count`` times in a row; return when."""
    at = []
    for _ in range(count):
        await each.wait(chat, group=group)
        at.append(time.now)
    return at


def most_within(times: Iterable[float], window_s: float) -> int:
    """Count the largest number of instants in any window (the instant at its end is outside)."""
    times = sorted(times)
    return max(sum(1 for each in times if at <= each < at + window_s - 1e-6) for at in times)


async def test_a_group_gets_twenty_a_minute(time: Ticking) -> None:
    [at] = await time.together(sends(limiter(time), time, "-100", 50, group=True))

    assert most_within(at, 60.0) == 20
    assert at[-1] - at[0] < 180.0


async def test_all_chats_together_get_thirty_a_second_and_none_is_left_behind(
    time: Ticking, each: Limiter
) -> None:
    at = await time.together(*(sends(each, time, str(chat), 2) for chat in range(100)))

    every = [instant for times in at for instant in times]
    assert most_within(every, 1.0) == 30
    assert max(every) - min(every) < 200 / 30 + 0.1
    # A first send is not behind everybody's second.
    assert max(first for first, _ in at) - min(every) < 4.0


async def test_a_topic_counts_with_its_chat(time: Ticking, each: Limiter) -> None:
    at = await time.together(
        sends(each, time, "-100:topic:5", 3, group=True), sends(each, time, "-100", 3, group=True)
    )

    assert most_within([*at[0], *at[1]], 3.0) == 3


async def test_a_pause_holds_its_chat_and_no_other(time: Ticking, each: Limiter) -> None:
    await each.pause("5", 17.0)

    paused, free = await time.together(sends(each, time, "5", 1), sends(each, time, "6", 3))

    assert paused == [1_017.0]
    assert free == [1_000.0] * 3


async def test_a_pause_reaches_who_waits_already_and_the_rate_holds_after_it(
    time: Ticking, each: Limiter
) -> None:
    async def pause() -> list[float]:
        await time.sleep(1.0)
        await each.pause("5", 10.0)
        return []

    _, *at = await time.together(pause(), *(sends(each, time, "5", 1) for _ in range(9)))

    later = sorted(instant for times in at for instant in times)[3:]
    assert later[0] == pytest.approx(1_011.0)
    assert most_within(later, 3.0) == 3


async def test_a_pause_of_all_holds_all(time: Ticking, each: Limiter) -> None:
    await each.pause(None, 4.0)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(40)))

    assert min(at) == [1_004.0]
    assert most_within([instant for [instant] in at], 1.0) == 30


async def test_who_gives_up_waiting_leaves_no_hole(time: Ticking) -> None:
    asleep: list[float] = []

    async def for_ever(after_s: float) -> None:
        asleep.append(after_s)
        await asyncio.Event().wait()

    each = Limiter(TELEGRAM, sent=[("5", 0.0)] * 3, clock=time, sleep=for_ever)
    waiting = [asyncio.create_task(each.wait("5", group=False)) for _ in range(3)]
    await until(lambda: len(asleep) == 1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    time.now += 3.0

    await asyncio.wait_for(each.wait("5", group=False), 10)

    assert len(asleep) == 1


async def test_a_send_counts_for_one_window_and_no_instant_longer(time: Ticking) -> None:
    one = Rates(overall=Rate(50, 1.0), chat=Rate(2, 3.0))

    [at] = await time.together(sends(limiter(time, one), time, "5", 4))

    assert at == [1_000.0, 1_000.0, 1_003.0, 1_003.0]


async def test_a_pause_is_the_longest_that_was_asked_for(time: Ticking) -> None:
    """In whatever order, also over a restart; each that is longer is told for the next one."""
    told: list[tuple[str, float]] = []

    async def noted(chat: str, for_s: float) -> None:
        told.append((chat, for_s))

    each = Limiter(TELEGRAM, paused=[("6", 10.0), ("7", 25.0)], noted=noted, clock=time, sleep=time.sleep)
    for chat, for_s in (("5", 30.0), ("5", 10.0), ("6:topic:1", 30.0), ("7", 20.0)):
        await each.pause(chat, for_s)

    at = await time.together(*(sends(each, time, chat, 1) for chat in "567"))

    assert at == [[1_030.0], [1_030.0], [1_025.0]]
    assert told == [("5", 30.0), ("6", 30.0)]
    await each.pause(None, 60.0)
    assert told[2:] == [("", 60.0)]


async def test_what_was_sent_before_a_restart_counts(time: Ticking) -> None:
    """In its chat, in its group and over all; what is older than the window does not."""
    sent = [("-5:topic:1", 59.0)] * 20 + [("6", 61.0)] * 40 + [("7", 0.5)] * 29
    each = Limiter(TELEGRAM, sent=sent, paused=[("", 0.25)], clock=time, sleep=time.sleep)

    group, other = await time.together(sends(each, time, "-5", 1, group=True), sends(each, time, "6", 2))

    assert group == [1_001.0]
    # Over all 30 a second.
    assert other == [1_000.25, 1_000.5]


async def test_a_chat_that_waits_for_itself_takes_no_place_among_all(time: Ticking) -> None:
    """While a chat is over its own rate, others use the places over all chats that it cannot."""
    rates = Rates(overall=Rate(2, 1.0), chat=Rate(1, 10.0))
    each = limiter(time, rates)

    mine, other = await time.together(sends(each, time, "5", 2), sends(each, time, "6", 1))

    assert (mine, other) == ([1_000.0, 1_010.0], [1_000.0])


async def test_who_waits_goes_in_the_order_of_asking(time: Ticking) -> None:
    rates = Rates(overall=Rate(1, 1.0), chat=Rate(5, 1.0))
    each = limiter(time, rates)

    at = await time.together(*(sends(each, time, str(chat), 1) for chat in range(5)))

    assert at == [[1_000.0 + number] for number in range(5)]


def test_the_rates_of_the_platforms() -> None:
    """Those of an unknown one are careful."""
    assert rates_of("matrix") == Rates(overall=Rate(20, 1.0), chat=Rate(5, 5.0))
    assert rates_of("telegram") == Rates(overall=Rate(30, 1.0), chat=Rate(3, 3.0), group=Rate(20, 60.0))
    assert rates_of("discord") == Rates(overall=Rate(50, 1.0), chat=Rate(5, 5.0))


async def test_who_is_paused_meanwhile_gives_up_its_place_among_all(time: Ticking) -> None:
    rates = Rates(overall=Rate(1, 1.0), chat=Rate(5, 1.0))
    each = limiter(time, rates)
    await each.wait("1", group=False)

    async def pause() -> list[float]:
        await time.sleep(0.5)
        await each.pause("5", 10.0)
        return []

    async def later() -> list[float]:
        await time.sleep(1.5)
        return await sends(each, time, "6", 1)

    _, five, six = await time.together(pause(), sends(each, time, "5", 1), later())
    assert (five, six) == ([1_010.5], [1_001.5])
