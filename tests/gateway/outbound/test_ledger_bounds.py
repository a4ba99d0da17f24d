"""How long a ledger remembers, how much, and what is forgotten on request: to the millisecond and row."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.outbound.ledger import DeliveryLedger, Progress
from gateway.outbound.ledger_file import forget, rows_of

KEY, OTHER, OUT = "fake:ada", "fake:bob", "fake:1#reply"
TICK = timedelta(milliseconds=1)


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2027, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "delivery-fake.db"


@pytest.mark.parametrize("late", [timedelta(0), TICK])
async def test_a_week_for_what_is_done_and_thirty_days_for_what_is_not(path: Path, late: timedelta) -> None:
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.sent(KEY, "done", 0, platform_id="m1", last=True)
    clock.at += timedelta(days=7) + late
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "done") == Progress(done=not late)
        await ledger.sent(KEY, "unfinished", 0, platform_id="m1")
        await ledger.begin_draft(KEY, "drafted")
        await ledger.draft_sent(KEY, "drafted", "m2")
    assert len(rows_of(path, "done")) == (0 if late else 2)

    clock.at += timedelta(days=30) + late
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "unfinished") == Progress(sent={} if late else {0: "m1"})
        assert await ledger.progress(KEY, "drafted") == Progress(draft="" if late else "m2")


async def test_what_is_old_is_forgotten_every_5000_changes(path: Path) -> None:
    """A daemon that is not started anew for months forgets, too; drafts and pieces count as letters do."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.done(KEY, "old")
        clock.at += timedelta(days=8)
        assert await ledger.begin_draft(KEY, "draft") == ""
        await ledger.sent(KEY, "sent", 0, platform_id="m1")
        await asyncio.gather(*(ledger.trying(KEY, "many", 0) for _ in range(4_996)))
        assert (await ledger.progress(KEY, "old")).done

        await ledger.trying(KEY, "many", 0)

        assert not (await ledger.progress(KEY, "old")).done
        assert (await ledger.progress(KEY, "many")).unknown == {0: 4_997}


async def test_of_ten_thousand_moves_the_oldest_is_forgotten(path: Path) -> None:
    clock = Clock()
    async with DeliveryLedger(path, clock=clock):
        pass
    with sqlite3.connect(path) as file:
        rows = [(f"old{number}", f"new{number}", number) for number in range(9_999)]
        file.executemany("INSERT INTO moves VALUES (?, ?, ?)", rows)
    file.close()

    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.moved("a", "b")
        assert ledger.address("old0") == "new0"
        clock.at += TICK
        await ledger.moved("c", "d")
        assert [ledger.address(each) for each in ("old0", "old1", "a", "c")] == ["old0", "new1", "b", "d"]


async def test_one_send_that_did_not_arrive_takes_back_one(path: Path) -> None:
    async with DeliveryLedger(path) as ledger:
        await ledger.trying(KEY, OUT, 0)
        await ledger.trying(KEY, OUT, 0)
        await ledger.not_sent(KEY, OUT, 0)
        assert (await ledger.progress(KEY, OUT)).unknown == {0: 1}


async def test_the_draft_of_a_letter_that_is_done_is_the_answer(path: Path) -> None:
    """Nobody writes another text into it."""
    async with DeliveryLedger(path) as ledger:
        await ledger.begin_draft(KEY, OUT)
        await ledger.draft_sent(KEY, OUT, "m1")
        await ledger.done(KEY, OUT)
        assert await ledger.begin_draft(KEY, OUT) is None


async def test_letters_done_before_a_time_are_forgotten_with_their_pieces(path: Path) -> None:
    """Those of the keys that are named alone; what is under way stays."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        for key, out_id in ((KEY, OUT), (OTHER, "fake:2#reply")):
            await ledger.sent(key, out_id, 0, platform_id="m1")
            await ledger.sent(key, out_id, 1, platform_id="m2", last=True)
        await ledger.sent(KEY, "fake:3#reply", 0, platform_id="m3")
        await ledger.begin_draft(KEY, "fake:4#reply")

    assert forget(path, [KEY, "fake:none"], before=clock.at) == 0
    assert len(rows_of(path, "fake:1")) == 3
    assert forget(path, [KEY, "fake:none"], before=clock.at + TICK) == 1
    assert [len(rows_of(path, f"fake:{number}")) for number in (1, 2, 3)] == [0, 3, 1]

    # For ever: whatever is under way, too.
    assert forget(path, [KEY], before=None) == 2
    assert forget(path, [OTHER], before=None) == 1
    assert rows_of(path, "fake:2") == rows_of(path, "fake:3") == []


async def test_no_byte_of_what_is_forgotten_stays(path: Path) -> None:
    async with DeliveryLedger(path) as ledger:
        for number in range(500):
            await ledger.done("fake:secretive", f"{number}#reply")
        await ledger.done(KEY, OUT)
    before = path.stat().st_size

    assert forget(path, ["fake:secretive"], before=None) == 500

    assert path.stat().st_size < before
    assert not any(b"secretive" in each.read_bytes() for each in path.parent.iterdir())
    assert len(rows_of(path, "fake:1")) == 1
