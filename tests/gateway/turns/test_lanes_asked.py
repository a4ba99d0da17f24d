"""What is asked of lanes while they run: who is at work, who can be stopped, and that all ends are theirs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.turns.lanes import Entry, Lane, RetryAfter
from tests.gateway.handed_letter import HandedLetter
from tests.gateway.turns.test_lanes import WorkByHand, inbound, opened, put
from tests.support.until import until


@dataclass(eq=False)
class Watched(HandedLetter):
    """A delivery that says what it was told."""

    told: list[str] = field(default_factory=list)

    def begin(self) -> bool:
        self.told.append("begin")
        return super().begin()

    def rest(self) -> None:
        self.told.append("rest")


async def paused(lanes: object, key: str) -> Lane:
    lane = lanes.get(key)  # type: ignore[attr-defined]
    assert lane is not None
    await until(lambda: lane.nudge is not None)
    return lane


def end(work: WorkByHand, name: str, verdict: RetryAfter | None = None) -> None:
    work.running[name].set_result(verdict)


async def test_the_first_of_a_lane_heads_it_and_no_other_does() -> None:
    """A death may have cut its turn alone."""
    async with opened() as (_, lanes):
        entries = [put(lanes, "cli:a", "1"), put(lanes, "cli:a", "2"), put(lanes, "cli:b", "3")]

        assert [each is not None and each.heads for each in entries] == [True, False, True]
        assert {lane.key: [each.inbound.id for each in lane.entries] for lane in lanes} == {
            "cli:a": ["1", "2"],
            "cli:b": ["3"],
        }


async def test_a_letter_begins_when_its_turn_does_and_rests_while_it_waits() -> None:
    async with opened() as (work, lanes):
        letter = Watched("1")
        lanes.add(inbound("cli:a", "1"), letter)
        await work.begun.get()
        assert letter.told == ["begin"]
        end(work, "cli:a|1", RetryAfter(60))
        lane = await paused(lanes, "cli:a")
        assert letter.told == ["begin", "rest"]

        assert lane.nudge is not None
        lane.nudge.set()
        await work.end()
        assert letter.told == ["begin", "rest", "begin"]
        await until(lambda: lanes.get("cli:a") is None)


async def test_a_delivery_that_replaces_a_lost_one_begins_where_the_turn_runs() -> None:
    """And waits where it waits; a copy beside one that is not lost is left for later."""
    async with opened() as (work, lanes):
        running, waiting = put(lanes, "cli:a", "1"), put(lanes, "cli:a", "2")
        assert running is not None
        assert waiting is not None
        await work.begun.get()
        copy, again, later = Watched("1"), Watched("1"), Watched("2")
        lanes.add(inbound("cli:a", "1"), copy)
        assert (running.copies, copy.told) == ([copy], [])
        for entry in (running, waiting):
            entry.letter.lost = True  # type: ignore[misc]

        lanes.add(inbound("cli:a", "1"), again)
        lanes.add(inbound("cli:a", "2"), later)

        assert (running.letter, again.told) == (again, ["begin"])
        assert (waiting.letter, later.told) == (later, [])


def test_what_is_left_is_what_came_after_the_acknowledged_one_and_each_copy() -> None:
    first, newer, copy, lost = (HandedLetter("1") for _ in range(4))
    lost.lost = True
    entry = Entry(inbound("cli:a", "1"), first, 0.0)
    assert list(entry.left()) == []

    entry.copies += [copy, lost]
    assert list(entry.left()) == [copy]
    entry.settled = first
    assert list(entry.left()) == [copy]
    entry.letter = newer
    assert list(entry.left()) == [newer, copy]
    newer.lost = True
    assert list(entry.left()) == [copy]


async def test_who_runs_and_who_waits_for_the_next_try_has_begun() -> None:
    async with opened() as (work, lanes):
        assert lanes.begun("cli:a") is None
        entry = put(lanes, "cli:a", "1")
        put(lanes, "cli:a", "2")
        assert lanes.begun("cli:a") is None
        await work.begun.get()
        assert lanes.begun("cli:a") is entry
        end(work, "cli:a|1", RetryAfter(60))
        lane = await paused(lanes, "cli:a")

        assert lane.running is None
        assert lanes.begun("cli:a") is entry


async def test_the_message_whose_turn_runs_is_found_by_its_id() -> None:
    async with opened() as (work, lanes):
        assert lanes.asking("cli:a", "1") is None
        entry = put(lanes, "cli:a", "1")
        put(lanes, "cli:a", "2")
        assert lanes.asking("cli:a", "1") is None
        await work.begun.get()

        assert entry is not None
        assert lanes.asking("cli:a", "1") is entry.inbound
        assert lanes.asking("cli:a", "2") is None
        assert lanes.asking("cli:b", "1") is None


async def test_a_stop_wakes_who_waits_for_its_next_try() -> None:
    async with opened() as (work, lanes):
        entry = put(lanes, "cli:a", "1")
        await work.end(RetryAfter(600))
        await paused(lanes, "cli:a")

        assert lanes.stop("cli:a") is entry
        assert await work.end() is entry
        assert entry is not None
        assert entry.stop.pulled
        assert not entry.stop.interrupted


async def test_a_message_stops_no_turn_of_its_own_and_none_twice() -> None:
    async with opened() as (work, lanes):
        entry = put(lanes, "cli:a", "1")
        await work.begun.get()

        assert lanes.stop("cli:a", "1") is None
        assert lanes.stop("cli:a", "2", interrupted=True) is entry
        assert entry is not None
        assert entry.stop.interrupted
        assert lanes.stop("cli:a", "2") is None


async def test_who_asks_for_a_letter_that_is_being_parked_waits_until_it_is() -> None:
    """Of its own key, or of any; for all others it waits for nothing."""
    async with opened() as (work, lanes):
        entry, other = put(lanes, "cli:a", "1"), put(lanes, "cli:b", "2")
        await work.begun.get()
        assert entry is not None
        assert other is not None
        entry.parking = asyncio.Event()

        async with asyncio.timeout(10):
            await lanes.parked_whole("1", "cli:b")
            await lanes.parked_whole("2", None)
            await lanes.parked_whole("3", "cli:a")
        waiting = [asyncio.ensure_future(lanes.parked_whole("1", key)) for key in ("cli:a", None)]
        done, _ = await asyncio.wait(waiting, timeout=0.02)
        assert not done
        entry.parking.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)


async def test_lanes_that_are_empty_are_gone_and_drained_at_once() -> None:
    async with opened() as (work, lanes):
        assert await lanes.drain(0)
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await work.end()
        await until(lambda: lanes.get("cli:a") is None)
        assert list(lanes) == []
        # The next one begins a lane of its own.
        put(lanes, "cli:a", "2")
        await work.end()
        assert await lanes.drain(10)
        assert work.ended == ["1", "2"]


async def test_a_drain_wakes_who_waits_and_begins_nothing() -> None:
    """What waits for hours, or for a place, holds up no end; what comes meanwhile comes again elsewhere."""
    async with opened(concurrent=1) as (work, lanes):
        waits = put(lanes, "cli:a", "1")
        await work.end(RetryAfter(600))
        await paused(lanes, "cli:a")
        put(lanes, "cli:b", "2")
        await work.begun.get()
        put(lanes, "cli:c", "3")
        draining = asyncio.ensure_future(lanes.drain(30))
        await asyncio.sleep(0)
        put(lanes, "cli:d", "4")
        assert not draining.done()
        end(work, "cli:b|2")

        assert await draining
        assert work.begun.empty()
        assert work.ended == ["2"]
        assert waits is not None
        assert not waits.stop.pulled
        assert [lanes.get(f"cli:{name}") for name in "abc"] == [None] * 3


async def test_what_comes_after_a_cancel_is_not_begun() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await work.begun.get()
        await lanes.cancel()
        put(lanes, "cli:b", "2")
        for _ in range(10):
            await asyncio.sleep(0)

        assert work.running == {}
        assert await lanes.drain(10)
        assert work.begun.empty()


async def test_a_pause_ends_by_its_time_and_the_lane_is_asked_again() -> None:
    async with opened() as (work, lanes):
        entry = put(lanes, "cli:a", "1")
        await work.end(RetryAfter(0.001))

        assert await work.end() is entry
        await until(lambda: lanes.get("cli:a") is None)


async def test_who_waits_behind_a_pause_that_is_over_has_not_begun() -> None:
    async with opened(concurrent=1) as (work, lanes):
        put(lanes, "cli:a", "1")
        put(lanes, "cli:a", "2")
        await work.end(RetryAfter(0.001))
        await work.begun.get()
        put(lanes, "cli:b", "x")
        await asyncio.sleep(0)
        end(work, "cli:a|1")

        assert (await work.begun.get()).inbound.id == "x"
        assert lanes.begun("cli:a") is None
        assert lanes.stop("cli:a") is None


async def test_a_copy_of_a_letter_that_is_lost_while_it_waits_has_its_own_turn() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        gone, copy = HandedLetter("2"), HandedLetter("2")
        lanes.add(inbound("cli:a", "2"), gone)
        lanes.add(inbound("cli:a", "2"), copy)
        gone.lost = True

        await work.end()
        assert (await work.end()).letter is copy
        await until(lambda: lanes.get("cli:a") is None)
        assert work.ended == ["1", "2"]
