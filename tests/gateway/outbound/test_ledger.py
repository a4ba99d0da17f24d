"""What was sent is remembered over restarts, kills and full disks, and not for ever."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import LedgerDown, NewerState
from gateway.outbound.ledger import DeliveryLedger, Progress
from gateway.outbound.ledger_file import forget, rows_of
from gateway.outbound.ledger_rows import PUT
from tests.gateway.embedded_place import files_at_most
from tests.support.clock import Clock
from tests.support.until import until

KEY, OUT = "fake:ada", "fake:1#reply"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "delivery-fake.db"


async def test_marks_survive_a_restart(path: Path) -> None:
    """What was begun, sent and taken back is known to the next process."""
    async with DeliveryLedger(path) as ledger:
        assert await ledger.progress(KEY, OUT) == Progress()
        await ledger.trying(KEY, OUT, 0)
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        await ledger.trying(KEY, OUT, 1)
        await ledger.trying(KEY, OUT, 1)
        await ledger.trying(KEY, OUT, 2)
        await ledger.not_sent(KEY, OUT, 2)
        await ledger.trying(KEY, OUT, 3)
        await ledger.trying(KEY, OUT, 3)
        await ledger.not_sent(KEY, OUT, 3)

    async with DeliveryLedger(path) as ledger:
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 2, 3: 1})
        assert await ledger.progress("fake:bob", OUT) == Progress()


async def test_a_letter_set_aside_may_be_sent_again(path: Path) -> None:
    """Unknown outcomes are forgotten, accepted pieces are not."""
    async with DeliveryLedger(path) as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        await ledger.trying(KEY, OUT, 1)
        await ledger.set_aside(KEY, OUT)
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"})


async def test_one_draft_of_a_reply_at_most(path: Path) -> None:
    """A draft is begun once; while its outcome is unknown, or when the reply is on its way, no other is."""
    async with DeliveryLedger(path) as ledger:
        assert await ledger.begin_draft(KEY, OUT) == ""
        assert await ledger.begin_draft(KEY, OUT) is None
        await ledger.draft_sent(KEY, OUT, "m1")
    async with DeliveryLedger(path) as ledger:
        assert await ledger.begin_draft(KEY, OUT) == "m1"
        assert (await ledger.progress(KEY, OUT)).draft == "m1"
        await ledger.drop_draft(KEY, OUT)
        assert await ledger.begin_draft(KEY, OUT) == ""
        await ledger.done(KEY, OUT)
        assert await ledger.begin_draft(KEY, OUT) is None
        await ledger.trying(KEY, "other#reply", 0)
        assert await ledger.begin_draft(KEY, "other#reply") is None
        # One that became the answer takes no other text.
        await ledger.begin_draft(KEY, "last#reply")
        await ledger.draft_sent(KEY, "last#reply", "m2")
        await ledger.done(KEY, "last#reply")
        assert await ledger.begin_draft(KEY, "last#reply") is None


async def test_a_chat_that_moved_twice_is_found(path: Path) -> None:
    """Moves are followed to their end, over restarts; a chat that moved back is where it is."""
    async with DeliveryLedger(path) as ledger:
        await ledger.moved("a", "b")
        await ledger.moved("b", "c")
    async with DeliveryLedger(path) as ledger:
        assert [ledger.address(chat) for chat in ("a", "b", "c", "d")] == ["c", "c", "c", "d"]
        await ledger.moved("c", "a")
        assert [ledger.address(chat) for chat in ("a", "b", "c")] == ["a", "a", "a"]


async def test_a_newer_file_is_left_alone(path: Path) -> None:
    """A version that is not known is refused, and not touched."""
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 2")
    file.close()
    before = path.read_bytes()

    with pytest.raises(NewerState, match="version 2"):
        async with DeliveryLedger(path):
            pass

    with pytest.raises(NewerState, match="version 2"):
        rows_of(path, "fake:1")
    assert path.read_bytes() == before


async def test_a_file_that_is_no_ledger_is_one_clear_error(path: Path) -> None:
    """The error names the file and a cure."""
    path.parent.mkdir()
    path.write_bytes(b"not a database at all" * 1_000)

    with pytest.raises(LedgerDown, match=r"delivery-fake\.db") as caught:
        async with DeliveryLedger(path):
            pass
    assert "moved away" in caught.value.hint
    with pytest.raises(LedgerDown, match=r"delivery-fake\.db"):
        rows_of(path, "fake:1")
    with pytest.raises(LedgerDown, match=r"delivery-fake\.db"):
        forget(path, [KEY], before=None)


async def test_a_full_disk_stores_nothing_and_says_so(path: Path) -> None:
    """A refused mark is not there; when there is room again the next one is taken."""
    async with DeliveryLedger(path) as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        with files_at_most(1), pytest.raises(LedgerDown):
            await ledger.trying(KEY, OUT, 1)
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"})
        await ledger.trying(KEY, OUT, 1)
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 1})


async def test_a_cancelled_caller_has_its_mark_made(path: Path) -> None:
    """Once asked for, a mark is written, whoever still waits."""
    async with DeliveryLedger(path) as ledger:
        asking = asyncio.create_task(ledger.sent(KEY, OUT, 0, platform_id="m1"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await ledger.progress(KEY, OUT)).sent == {0: "m1"}


async def test_its_files_are_private(path: Path) -> None:
    """Nobody else may read whom we write to."""
    async with DeliveryLedger(path) as ledger:
        await ledger.done(KEY, OUT)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


async def test_a_closed_ledger_says_so(path: Path) -> None:
    """What is asked after the end is refused and never waits for ever."""
    ledger = DeliveryLedger(path)
    for _ in range(2):
        with pytest.raises(LedgerDown, match="is not open"):
            await ledger.done(KEY, OUT)
        async with ledger:
            await ledger.done(KEY, "before")


def has_thread() -> bool:
    return any(each.name.startswith("ledger delivery-fake") for each in threading.enumerate())


async def test_no_thread_outlives_a_ledger(path: Path) -> None:
    """Neither one that was closed nor one that could not be opened."""
    async with DeliveryLedger(path):
        assert has_thread()
    await until(lambda: not has_thread())

    path.write_bytes(b"not a database at all" * 1_000)
    with pytest.raises(LedgerDown):
        async with DeliveryLedger(path):
            pass
    await until(lambda: not has_thread())


async def test_the_pieces_of_a_letter_that_is_done_are_known_as_long_as_it_is(path: Path) -> None:
    """Whoever traces a message sees what the platform took, as what and when; forgotten with the letter."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.trying(KEY, OUT, 0)
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        await ledger.trying(KEY, OUT, 1)
        await ledger.sent(KEY, OUT, 1, platform_id="m2", last=True, put_at=clock.now - timedelta(seconds=2))
        await ledger.trying(KEY, "fake:2#reply", 0)
    rows = {(row.id, row.piece): row for row in rows_of(path, "fake:1")}

    assert {piece: row.platform_id for (_, piece), row in rows.items()} == {
        None: "",
        PUT: "",
        0: "m1",
        1: "m2",
    }
    assert rows[OUT, PUT].at == clock.now - timedelta(seconds=2)
    assert rows[OUT, None].at == clock.now
    assert [(row.piece, row.unknown) for row in rows_of(path, "fake:2")] == [(0, 1)]

    clock.now += timedelta(days=8)
    async with DeliveryLedger(path, clock=clock):
        pass
    assert rows_of(path, "fake:1") == []
    assert len(rows_of(path, "fake:2")) == 1
    assert forget(path, [KEY], before=None) == 1
    assert rows_of(path, "fake:2") == []


OTHER = "fake:bob"
TICK = timedelta(milliseconds=1)


@pytest.mark.parametrize("late", [timedelta(0), TICK])
async def test_a_week_for_what_is_done_and_thirty_days_for_what_is_not(path: Path, late: timedelta) -> None:
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.sent(KEY, "done", 0, platform_id="m1", last=True)
    clock.now += timedelta(days=7) + late
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "done") == Progress(done=not late)
        await ledger.sent(KEY, "unfinished", 0, platform_id="m1")
        await ledger.begin_draft(KEY, "drafted")
        await ledger.draft_sent(KEY, "drafted", "m2")
    assert len(rows_of(path, "done")) == (0 if late else 2)

    clock.now += timedelta(days=30) + late
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "unfinished") == Progress(sent={} if late else {0: "m1"})
        assert await ledger.progress(KEY, "drafted") == Progress(draft="" if late else "m2")


async def test_what_is_old_is_forgotten_every_5000_changes(path: Path) -> None:
    """A daemon that is not started anew for months forgets, too; drafts and pieces count as letters do."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.done(KEY, "old")
        clock.now += timedelta(days=8)
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
        clock.now += TICK
        await ledger.moved("c", "d")
        assert [ledger.address(each) for each in ("old0", "old1", "a", "c")] == ["old0", "new1", "b", "d"]


async def test_letters_done_before_a_time_are_forgotten_with_their_pieces(path: Path) -> None:
    """Those of the keys that are named alone; what is under way stays."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        for key, out_id in ((KEY, OUT), (OTHER, "fake:2#reply")):
            await ledger.sent(key, out_id, 0, platform_id="m1")
            await ledger.sent(key, out_id, 1, platform_id="m2", last=True)
        await ledger.sent(KEY, "fake:3#reply", 0, platform_id="m3")
        await ledger.begin_draft(KEY, "fake:4#reply")

    assert forget(path, [KEY, "fake:none"], before=clock.now) == 0
    assert len(rows_of(path, "fake:1")) == 3
    assert forget(path, [KEY, "fake:none"], before=clock.now + TICK) == 1
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
