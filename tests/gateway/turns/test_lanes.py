"""Lanes: one letter of a key at a time, in order, while other keys go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from channels.message import Inbound
from gateway.turns.lanes import Entry, Lanes, RetryAfter
from tests.gateway.handed_letter import HandedLetter
from tests.support.guarantee import guarantee
from tests.support.until import until


def inbound(key: str, id: str) -> Inbound:
    channel, _, chat_id = key.partition(":")
    return Inbound(v=1, id=id, key=key, channel=channel, chat_id=chat_id, text=id)


def put(lanes: Lanes, key: str, id: str) -> Entry | None:
    return lanes.add(inbound(key, id), HandedLetter(id))


class WorkByHand:
    """Works on entries only when told to, and remembers who was at work with whom."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Entry] = asyncio.Queue()
        self.running: dict[str, asyncio.Future[RetryAfter | None]] = {}
        self.ended: list[str] = []

    async def work(self, entry: Entry) -> RetryAfter | None:
        future: asyncio.Future[RetryAfter | None] = asyncio.get_running_loop().create_future()
        assert entry.inbound.key not in {other.split("|")[0] for other in self.running}
        name = f"{entry.inbound.key}|{entry.inbound.id}"
        self.running[name] = future
        self.begun.put_nowait(entry)
        try:
            verdict = await future
        finally:
            del self.running[name]
        if verdict is None:
            self.ended.append(entry.inbound.id)
        return verdict

    async def end(self, verdict: RetryAfter | None = None) -> Entry:
        entry = await self.begun.get()
        name = f"{entry.inbound.key}|{entry.inbound.id}"
        self.running[name].set_result(verdict)
        while name in self.running:
            await asyncio.sleep(0)
        return entry


@asynccontextmanager
async def opened(concurrent: int = 10) -> AsyncIterator[tuple[WorkByHand, Lanes]]:
    work = WorkByHand()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        lanes = Lanes(work.work, group=group, concurrent=concurrent)
        yield work, lanes
        await lanes.cancel()


@guarantee("order", "Messages of one chat run one at a time, in order.")
async def test_letters_of_one_key_run_one_at_a_time_in_order() -> None:
    async with opened() as (work, lanes):
        for number in range(5):
            lanes.add(inbound("cli:a", str(number)), HandedLetter(str(number)))

        for _ in range(5):
            await work.end()
            assert len(work.running) <= 1
        await lanes.drain(1)

    assert work.ended == ["0", "1", "2", "3", "4"]


async def test_keys_run_side_by_side_up_to_the_limit() -> None:
    async with opened(concurrent=2) as (work, lanes):
        for name in "abc":
            lanes.add(inbound(f"cli:{name}", name), HandedLetter(name))

        first, second = await work.begun.get(), await work.begun.get()

        assert {first.inbound.id, second.inbound.id} == {"a", "b"}
        assert len(work.running) == 2


@guarantee("connection", "A message that is redelivered during its turn only replaces its acknowledgement.")
async def test_a_letter_delivered_again_only_swaps_the_acknowledgement() -> None:
    """A turn that runs when its letter comes again is not begun a second time."""
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        entry = await work.begun.get()
        entry.letter.lost = True  # type: ignore[misc]
        again = HandedLetter("1")

        added = lanes.add(inbound("cli:a", "1"), again)

        assert added is None
        assert entry.letter is again
        assert work.begun.empty()


async def test_a_copy_that_was_put_beside_a_letter_has_its_own_turn_behind_it() -> None:
    """Each has its acknowledgement; one whose delivery ended meanwhile comes again by itself."""
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await work.begun.get()
        lost, copy = HandedLetter("1"), HandedLetter("1")
        assert [lanes.add(inbound("cli:a", "1"), each) for each in (lost, copy)] == [None, None]
        lost.lost = True
        work.running["cli:a|1"].set_result(None)

        assert (await work.begun.get()).letter is copy


async def test_a_waiting_letter_that_is_lost_is_left_to_its_next_delivery() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        gone = HandedLetter("2")
        lanes.add(inbound("cli:a", "2"), gone)
        put(lanes, "cli:a", "3")
        gone.lost = True

        await work.end()
        await work.end()
        await lanes.drain(1)

    assert work.ended == ["1", "3"]


async def lost_behind_others(work: WorkByHand, lanes: Lanes, *, proven: bool = True) -> None:
    """Lose 1 and 2 of a lane, whose first letter has its place and gives it up while others wait."""
    gone = [Unproven(each) for each in "12"]
    put(lanes, "cli:x", "x")
    await work.begun.get()
    for letter in gone:
        lanes.add(inbound("cli:a", letter.id), letter)
    put(lanes, "cli:y", "y")
    await asyncio.sleep(0)
    for letter in gone:
        letter.lost, letter.proven = proven, proven
    work.running["cli:x|x"].set_result(None)
    assert (await work.begun.get()).inbound.id == "y"
    lane = lanes.get("cli:a")
    assert lane is not None
    assert [each.inbound.id for each in lane.entries] == ["2"]
    for letter in gone:
        letter.lost = True


@dataclass(eq=False)
class Unproven(HandedLetter):
    """A delivery on a connection of which nobody knows for a while whether it is lost."""

    proven: bool = True

    def begin(self) -> bool:
        return self.proven and super().begin()


@guarantee("order", "Messages that are redelivered while all turn slots are taken keep their order.")
@pytest.mark.parametrize("proven", [True, False])
async def test_letters_that_come_again_while_no_place_is_free_keep_their_order(proven: bool) -> None:
    """The first one gave its place up when it was lost, and the next one waits for a place by then."""
    async with opened(concurrent=1) as (work, lanes):
        await lost_behind_others(work, lanes, proven=proven)

        added = [put(lanes, "cli:a", each) for each in "123"]
        work.running["cli:y|y"].set_result(None)
        for _ in range(3):
            await work.end()
        await until(lambda: not list(lanes))

        assert work.ended == ["x", "y", "1", "2", "3"]
        assert [entry is not None and entry.heads for entry in added] == [True, False, False]


async def test_a_turn_that_was_lost_at_its_end_is_not_overtaken_by_the_next_one() -> None:
    """Its next try finds it lost; when it comes again, another chat has the one place."""
    async with opened(concurrent=1) as (work, lanes):
        letters = [HandedLetter(each) for each in "12"]
        for letter in letters:
            lanes.add(inbound("cli:a", letter.id), letter)
        put(lanes, "cli:x", "x")
        while "cli:a|1" not in work.running:
            await asyncio.sleep(0)
        for letter in letters:
            letter.lost = True
        work.running["cli:a|1"].set_result(RetryAfter(0))
        assert [(await work.begun.get()).inbound.id for _ in range(2)] == ["1", "x"]
        lane = lanes.get("cli:a")
        assert lane is not None
        await until(lambda: lane.nudge is None)
        put(lanes, "cli:y", "y")
        await asyncio.sleep(0)
        work.running["cli:x|x"].set_result(None)
        assert (await work.begun.get()).inbound.id == "y"
        assert [each.inbound.id for each in lane.entries] == ["2"]

        for each in "12":
            put(lanes, "cli:a", each)
        work.running["cli:y|y"].set_result(None)
        await work.end()
        await work.end()
        await until(lambda: not list(lanes))

        assert work.ended == ["x", "y", "1", "2"]


async def test_a_lost_letter_that_pauses_holds_up_nothing_that_comes() -> None:
    """Another daemon may have it by now: what comes meanwhile begins at once, and is not stopped for it."""
    async with opened() as (work, lanes):
        letters = [HandedLetter(each) for each in "12"]
        for letter in letters:
            lanes.add(inbound("cli:a", letter.id), letter)
        await work.end(RetryAfter(600))
        lane = lanes.get("cli:a")
        assert lane is not None
        await until(lambda: lane.nudge is not None)
        for letter in letters:
            letter.lost = True

        entry = put(lanes, "cli:a", "3")

        assert lanes.begun("cli:a") is None
        assert await work.end() is entry
        await until(lambda: not list(lanes))
        assert work.ended == ["3"]


async def test_a_turn_that_runs_stays_in_its_lane_when_its_letter_is_lost() -> None:
    async with opened() as (work, lanes):
        letters = [HandedLetter(each) for each in "12"]
        for letter in letters:
            lanes.add(inbound("cli:a", letter.id), letter)
        entry = await work.begun.get()
        for letter in letters:
            letter.lost = True

        put(lanes, "cli:a", "3")

        lane = lanes.get("cli:a")
        assert lane is not None
        assert [each.inbound.id for each in lane.entries] == ["1", "3"]
        assert put(lanes, "cli:a", "1") is None
        assert not entry.letter.lost
        work.running["cli:a|1"].set_result(None)
        await work.end()
        await until(lambda: not list(lanes))
        assert work.ended == ["1", "3"]


async def test_what_waits_and_has_a_copy_that_is_not_lost_stays() -> None:
    """The copy has an acknowledgement of its own, and comes only once."""
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        gone, copy = HandedLetter("2"), HandedLetter("2")
        for letter in (gone, copy):
            lanes.add(inbound("cli:a", "2"), letter)
        gone.lost = True

        put(lanes, "cli:a", "3")
        for _ in range(3):
            await work.end()
        await until(lambda: not list(lanes))

        assert work.ended == ["1", "3", "2"]


async def test_a_lane_that_waits_leaves_its_place_to_others_and_keeps_its_order() -> None:
    """An outage of one chat's turn takes no place among the running turns, and nothing overtakes it."""
    woken = asyncio.Event()
    async with opened(concurrent=1) as (work, lanes):
        put(lanes, "cli:a", "1")
        put(lanes, "cli:a", "2")
        put(lanes, "cli:b", "x")

        await work.end(RetryAfter(60, woken))
        await work.end()
        assert work.ended == ["x"]
        woken.set()
        await work.end()
        await work.end()
        await lanes.drain(1)

    assert work.ended == ["x", "1", "2"]


async def test_a_drain_starts_nothing_new_and_lets_the_running_turn_end() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        put(lanes, "cli:a", "2")
        entry = await work.begun.get()
        drained = asyncio.ensure_future(lanes.drain(30))
        await asyncio.sleep(0)

        work.running["cli:a|1"].set_result(None)

        assert await drained
        assert work.ended == ["1"]
        assert entry.inbound.id == "1"


async def test_a_delivery_that_comes_when_the_one_before_has_ended_is_worked_on_as_well() -> None:
    async with opened() as (work, lanes):
        first, again = HandedLetter("1"), HandedLetter("1")
        lanes.add(inbound("cli:a", "1"), first)
        put(lanes, "cli:a", "2")
        entry = await work.begun.get()
        entry.settled = first
        lanes.add(inbound("cli:a", "1"), again)
        work.running["cli:a|1"].set_result(None)

        assert (await work.end()).inbound.id == "2"
        assert (await work.end()).letter is again
        while lanes.get("cli:a") is not None:
            await asyncio.sleep(0)
        assert work.ended == ["1", "2", "1"]


async def test_a_drain_that_takes_too_long_cancels() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await work.begun.get()

        assert not await lanes.drain(0.01)

        assert work.running == {}
        assert work.ended == []


async def test_a_lane_that_was_cancelled_before_it_began_holds_up_no_drain() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await lanes.cancel()

        assert await asyncio.wait_for(lanes.drain(30), 10)
        assert work.begun.empty()


@pytest.mark.parametrize("running", [True, False])
async def test_stop_pulls_the_switch_of_a_running_turn_only(running: bool) -> None:
    async with opened() as (work, lanes):
        if running:
            put(lanes, "cli:a", "1")
            await work.begun.get()

        stopped = lanes.stop("cli:a")

        assert (stopped is not None) == running
        assert stopped is None or stopped.stop.pulled
        assert lanes.stop("cli:a") is None


async def test_a_stop_in_a_try_that_has_to_wait_is_not_slept_over() -> None:
    """The next try sees it at once; where that one has to wait too, it waits."""
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        entry = await work.begun.get()
        assert lanes.stop("cli:a") is entry
        work.running["cli:a|1"].set_result(RetryAfter(600))

        assert await work.end(RetryAfter(600)) is entry
        lane = lanes.get("cli:a")
        assert lane is not None
        while lane.nudge is None:
            await asyncio.sleep(0)
        assert work.begun.empty()


async def test_of_a_closed_key_only_what_was_there_before_goes_on() -> None:
    """An erasure ends the turns that there are, and none begins beside it; two may go on at once."""
    async with opened() as (work, lanes):
        for number in ("1", "2"):
            put(lanes, "cli:a", number)
        lanes.close("cli:a")
        lanes.close("cli:a")
        put(lanes, "cli:a", "3")
        put(lanes, "cli:b", "4")
        assert {(await work.end()).inbound.id for _ in range(3)} == {"1", "2", "4"}

        lanes.reopen("cli:a")
        for _ in range(20):
            await asyncio.sleep(0)
        assert work.begun.empty()

        lanes.reopen("cli:a")
        assert (await work.end()).inbound.id == "3"
