"""What was sent is remembered over restarts, kills and full disks, and not for ever."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import LedgerDown, NewerState
from gateway.outbound.ledger import DeliveryLedger, Progress
from gateway.outbound.ledger_file import forget, rows_of
from gateway.outbound.ledger_rows import PUT
from tests.gateway.embedded_place import files_at_most
from tests.support.until import until

KEY, OUT = "fake:ada", "fake:1#reply"


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.at = datetime(2027, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


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

    async with DeliveryLedger(path) as ledger:
        assert await ledger.progress(KEY, OUT) == Progress(sent={0: "m1"}, unknown={1: 2})
        assert await ledger.progress("fake:bob", OUT) == Progress()


async def test_the_last_piece_ends_the_letter(path: Path) -> None:
    """The last mark and the end are one: there is no instant between them."""
    async with DeliveryLedger(path) as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        await ledger.trying(KEY, OUT, 1)
        await ledger.sent(KEY, OUT, 1, platform_id="m2", last=True)
        assert await ledger.progress(KEY, OUT) == Progress(done=True)


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


async def test_a_chat_that_moved_twice_is_found(path: Path) -> None:
    """Moves are followed to their end, over restarts; a chat that moved back is where it is."""
    async with DeliveryLedger(path) as ledger:
        await ledger.moved("a", "b")
        await ledger.moved("b", "c")
    async with DeliveryLedger(path) as ledger:
        assert [ledger.address(chat) for chat in ("a", "b", "c", "d")] == ["c", "c", "c", "d"]
        await ledger.moved("c", "a")
        assert [ledger.address(chat) for chat in ("a", "b", "c")] == ["a", "a", "a"]


async def test_old_marks_are_forgotten(path: Path) -> None:
    """Delivered letters after a week, unfinished ones after a month, moves never."""
    clock = Clock()
    async with DeliveryLedger(path, clock=clock) as ledger:
        await ledger.done(KEY, "done")
        await ledger.sent(KEY, "unfinished", 0, platform_id="m1")
        await ledger.moved("a", "b")
    clock.at += timedelta(days=8)
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "done") == Progress()
        assert await ledger.progress(KEY, "unfinished") == Progress(sent={0: "m1"})
    clock.at += timedelta(days=30)
    async with DeliveryLedger(path, clock=clock) as ledger:
        assert await ledger.progress(KEY, "unfinished") == Progress()
        assert ledger.address("a") == "b"


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


async def test_one_bad_mark_takes_no_other_with_it(path: Path) -> None:
    """A name that is no text is refused; the marks of the same batch are stored."""
    async with DeliveryLedger(path) as ledger:
        marks = [ledger.trying(KEY, f"x{number}", 0) for number in range(50)]
        marks.insert(20, ledger.trying(KEY, "\ud800", 0))
        outcomes = await asyncio.gather(*marks, return_exceptions=True)

        assert [type(each) for each in outcomes if each is not None] == [LedgerDown]
        for number in range(50):
            assert (await ledger.progress(KEY, f"x{number}")).unknown == {0: 1}


async def test_two_processes_may_have_it_open(path: Path) -> None:
    """Who takes an adapter over reads what the one before it wrote, which may not have closed yet."""
    async with DeliveryLedger(path) as one, DeliveryLedger(path) as other:
        await one.trying(KEY, OUT, 0)
        assert (await other.progress(KEY, OUT)).unknown == {0: 1}
        await other.sent(KEY, OUT, 0, platform_id="m1")
        assert (await one.progress(KEY, OUT)).sent == {0: "m1"}


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
        await ledger.sent(KEY, OUT, 1, platform_id="m2", last=True, put_at=clock.at - timedelta(seconds=2))
        await ledger.trying(KEY, "fake:2#reply", 0)
    rows = {(row.id, row.piece): row for row in rows_of(path, "fake:1")}

    assert {piece: row.platform_id for (_, piece), row in rows.items()} == {
        None: "",
        PUT: "",
        0: "m1",
        1: "m2",
    }
    assert rows[OUT, PUT].at == clock.at - timedelta(seconds=2)
    assert rows[OUT, None].at == clock.at
    assert [(row.piece, row.unknown) for row in rows_of(path, "fake:2")] == [(0, 1)]

    clock.at += timedelta(days=8)
    async with DeliveryLedger(path, clock=clock):
        pass
    assert rows_of(path, "fake:1") == []
    assert len(rows_of(path, "fake:2")) == 1
    assert forget(path, [KEY], before=None) == 1
    assert rows_of(path, "fake:2") == []
