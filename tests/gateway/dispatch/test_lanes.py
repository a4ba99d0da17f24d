"""Lanes: one letter of a key at a time, in order, while other keys go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.dispatch.lanes import Lane, Lanes, PendingMessage, RetryAfter
from tests.gateway.handed_letter import HandedLetter
from tests.gateway.worker_rig import letter
from tests.support.guarantee import guarantee
from tests.support.until import until


def put(lanes: Lanes, key: str, id: str | HandedLetter) -> PendingMessage | None:
    delivery = HandedLetter(id) if isinstance(id, str) else id
    return lanes.add(letter(delivery.id, delivery.id, key), delivery)


async def paused(lanes: Lanes, key: str) -> Lane:
    lane = lanes.get(key)
    assert lane is not None
    await until(lambda: lane.nudge is not None)
    return lane


class WorkByHand:
    """Works on entries only when told to, and remembers who was at work with whom."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[PendingMessage] = asyncio.Queue()
        self.running: dict[str, asyncio.Future[RetryAfter | None]] = {}
        self.ended: list[str] = []

    async def work(self, entry: PendingMessage) -> RetryAfter | None:
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

    async def end(self, verdict: RetryAfter | None = None) -> PendingMessage:
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
            put(lanes, "cli:a", str(number))

        for _ in range(5):
            await work.end()
            assert len(work.running) <= 1
        await lanes.drain(1)

    assert work.ended == ["0", "1", "2", "3", "4"]


async def test_keys_run_side_by_side_up_to_the_limit() -> None:
    async with opened(concurrent=2) as (work, lanes):
        for name in "abc":
            put(lanes, f"cli:{name}", name)

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

        added = put(lanes, "cli:a", again)

        assert added is None
        assert entry.letter is again
        assert work.begun.empty()


async def test_a_copy_that_was_put_beside_a_letter_has_its_own_turn_behind_it() -> None:
    """Each has its acknowledgement; one whose delivery ended meanwhile comes again by itself."""
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        await work.begun.get()
        lost, copy = HandedLetter("1"), HandedLetter("1")
        assert [put(lanes, "cli:a", each) for each in (lost, copy)] == [None, None]
        lost.lost = True
        work.running["cli:a|1"].set_result(None)

        assert (await work.begun.get()).letter is copy


async def test_a_waiting_letter_that_is_lost_is_left_to_its_next_delivery() -> None:
    async with opened() as (work, lanes):
        put(lanes, "cli:a", "1")
        gone = HandedLetter("2")
        put(lanes, "cli:a", gone)
        put(lanes, "cli:a", "3")
        gone.lost = True

        await work.end()
        await work.end()
        await lanes.drain(1)

    assert work.ended == ["1", "3"]


async def lost_behind_others(work: WorkByHand, lanes: Lanes) -> None:
    """Lose 1 and 2 of a lane, whose first letter has its place and gives it up while others wait."""
    gone = [HandedLetter(each) for each in "12"]
    put(lanes, "cli:x", "x")
    await work.begun.get()
    for each in gone:
        put(lanes, "cli:a", each)
    put(lanes, "cli:y", "y")
    await asyncio.sleep(0)
    for each in gone:
        each.lost = True
    work.running["cli:x|x"].set_result(None)
    assert (await work.begun.get()).inbound.id == "y"
    lane = lanes.get("cli:a")
    assert lane is not None
    assert [each.inbound.id for each in lane.entries] == ["2"]
    for each in gone:
        each.lost = True


@guarantee("order", "Messages that are redelivered while all turn slots are taken keep their order.")
async def test_letters_that_come_again_while_no_place_is_free_keep_their_order() -> None:
    """The first one gave its place up when it was lost, and the next one waits for a place by then."""
    async with opened(concurrent=1) as (work, lanes):
        await lost_behind_others(work, lanes)

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
        for each in letters:
            put(lanes, "cli:a", each)
        put(lanes, "cli:x", "x")
        while "cli:a|1" not in work.running:
            await asyncio.sleep(0)
        for each in letters:
            each.lost = True
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

        for name in "12":
            put(lanes, "cli:a", name)
        work.running["cli:y|y"].set_result(None)
        await work.end()
        await work.end()
        await until(lambda: not list(lanes))

        assert work.ended == ["x", "y", "1", "2"]


async def test_a_lost_letter_that_pauses_holds_up_nothing_that_comes() -> None:
    """Another daemon may have it by now: what comes meanwhile begins at once, and is not stopped for it."""
    async with opened() as (work, lanes):
        letters = [HandedLetter(each) for each in "12"]
        for each in letters:
            put(lanes, "cli:a", each)
        await work.end(RetryAfter(600))
        await paused(lanes, "cli:a")
        for each in letters:
            each.lost = True

        entry = put(lanes, "cli:a", "3")

        assert lanes.begun("cli:a") is None
        assert await work.end() is entry
        await until(lambda: not list(lanes))
        assert work.ended == ["3"]


async def test_a_turn_that_runs_stays_in_its_lane_when_its_letter_is_lost() -> None:
    async with opened() as (work, lanes):
        letters = [HandedLetter(each) for each in "12"]
        for each in letters:
            put(lanes, "cli:a", each)
        entry = await work.begun.get()
        for each in letters:
            each.lost = True

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
        for each in (gone, copy):
            put(lanes, "cli:a", each)
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


async def test_a_delivery_that_comes_when_the_one_before_has_ended_is_worked_on_as_well() -> None:
    async with opened() as (work, lanes):
        first, again = HandedLetter("1"), HandedLetter("1")
        put(lanes, "cli:a", first)
        put(lanes, "cli:a", "2")
        entry = await work.begun.get()
        entry.settled = first
        put(lanes, "cli:a", again)
        work.running["cli:a|1"].set_result(None)

        assert (await work.end()).inbound.id == "2"
        assert (await work.end()).letter is again
        await until(lambda: lanes.get("cli:a") is None)
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


async def test_a_delivery_that_comes_again_replaces_a_lost_one_or_is_a_copy() -> None:
    async with opened() as (work, lanes):
        running, waiting = put(lanes, "cli:a", "1"), put(lanes, "cli:a", "2")
        assert running is not None
        assert waiting is not None
        await work.begun.get()
        copy, again, later = HandedLetter("1"), HandedLetter("1"), HandedLetter("2")
        put(lanes, "cli:a", copy)
        assert running.copies == [copy]
        for entry in (running, waiting):
            entry.letter.lost = True  # type: ignore[misc]

        put(lanes, "cli:a", again)
        put(lanes, "cli:a", later)

        assert (running.letter, waiting.letter) == (again, later)


def test_what_is_left_is_what_came_after_the_acknowledged_one_and_each_copy() -> None:
    first, newer, copy, lost = (HandedLetter("1") for _ in range(4))
    lost.lost = True
    entry = PendingMessage(letter("1", "1", "cli:a"), first, 0.0)
    assert list(entry.left()) == []

    entry.copies += [copy, lost]
    assert list(entry.left()) == [copy]
    entry.settled = first
    assert list(entry.left()) == [copy]
    entry.letter = newer
    assert list(entry.left()) == [newer, copy]
    newer.lost = True
    assert list(entry.left()) == [copy]


async def test_who_runs_and_who_waits_for_the_next_try_has_begun_and_can_be_stopped() -> None:
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

        assert lanes.stop("cli:a") is entry
        assert await work.end() is entry
        assert entry is not None
        assert entry.stop.pulled
        assert not entry.stop.interrupted


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
