"""What a ledger's file answers where a batch fails by half or it is damaged, and how long its log stays."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

import durable
from gateway.errors import LedgerDown
from gateway.outbound.ledger import DeliveryLedger, Progress
from gateway.outbound.ledger_file import LedgerFile, SentRow, forget, rows_noted, rows_of
from gateway.outbound.ledger_log import LedgerLog, Note
from gateway.outbound.ledger_rows import TABLES, VERSION, Rows
from tests.gateway.embedded_place import files_at_most

KEY, OUT = "fake:ada", "fake:1#reply"
AT = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one" / "delivery-fake.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "deliveries" / "fake"


def learnt(folder: Path) -> list[str]:
    """Return the letters of which a machine that takes over learns."""
    return [str(note.arguments["out_id"]) for _, _, note, _ in LedgerLog(folder, "late").others({})]


async def test_the_others_are_told_of_what_was_stored_alone(path: Path, folder: Path) -> None:
    """A mark that is refused costs no other of its batch, here or there."""
    async with DeliveryLedger(path, log=LedgerLog(folder, "one")) as ledger:
        marks = [ledger.trying(KEY, f"x{number}", 0) for number in range(3)]
        marks.insert(1, ledger.trying(KEY, "\ud800", 0))
        marks.insert(2, ledger.sent(KEY, "odd", 2**70, platform_id="m"))
        outcomes = await asyncio.gather(*marks, return_exceptions=True)

    assert [type(each) for each in outcomes] == [type(None), LedgerDown, LedgerDown, *[type(None)] * 2]
    assert learnt(folder) == ["x0", "x1", "x2"]


async def test_where_nobody_can_be_told_looking_is_answered_and_changes_are_refused(
    path: Path, folder: Path
) -> None:
    """In one batch; whoever is refused hears of a disk, with a cure."""
    async with DeliveryLedger(path, log=LedgerLog(folder, "one")) as ledger:
        await ledger.sent(KEY, OUT, 0, platform_id="m1")
        (file,) = folder.iterdir()
        os.truncate(file, 2**19)
        with files_at_most(2**19 - 2**10):
            change, look, bad = await asyncio.gather(
                ledger.trying(KEY, "fake:2#reply", 0),
                ledger.progress(KEY, OUT),
                ledger.trying(KEY, "\ud800", 0),
                return_exceptions=True,
            )

    assert isinstance(change, LedgerDown)
    assert "File too large" in str(change)
    assert "free disk space" in change.hint
    assert look == Progress(sent={0: "m1"})
    assert isinstance(bad, LedgerDown)
    assert "surrogates" in str(bad)


async def test_of_a_batch_that_does_not_fit_what_fits_is_stored(path: Path) -> None:
    async with DeliveryLedger(path) as ledger:
        await ledger.done(KEY, "before")
        with files_at_most(2**19):
            large, small = await asyncio.gather(
                ledger.done(KEY, "x" * 2**20), ledger.trying(KEY, OUT, 0), return_exceptions=True
            )
        assert isinstance(large, LedgerDown)
        assert small is None
        assert await ledger.progress(KEY, OUT) == Progress(unknown={0: 1})


async def test_a_machine_that_cannot_read_what_the_others_noted_sends_nothing(
    path: Path, folder: Path
) -> None:
    """It would send again what they have sent; once they can be read it begins."""
    async with DeliveryLedger(path.parent / "other.db", log=LedgerLog(folder, "other")) as ledger:
        await ledger.done(KEY, OUT)
    odd = folder / "other-1.jsonl"
    odd.mkdir()

    with pytest.raises(LedgerDown, match=r"other-1\.jsonl"):
        async with DeliveryLedger(path, log=LedgerLog(folder, "one")):
            pass

    odd.rmdir()
    async with DeliveryLedger(path, log=LedgerLog(folder, "one")) as ledger:
        assert (await ledger.progress(KEY, OUT)).done


async def test_a_file_without_its_tables_is_an_error_with_a_cure(path: Path) -> None:
    """Whoever forgets is not told that it is done."""
    async with DeliveryLedger(path) as ledger:
        await ledger.done(KEY, OUT)
    with closing(sqlite3.connect(path)) as file:
        file.execute("DROP TABLE drafts")

    with pytest.raises(LedgerDown, match="drafts") as caught:
        forget(path, [KEY], before=None)

    assert "moved away" in caught.value.hint
    with closing(sqlite3.connect(path)) as file:
        file.execute(next(each for each in TABLES if "TABLE drafts" in each))
    assert forget(path, [KEY], before=None) == 1


async def test_a_log_that_grew_is_cut_to_sixteen_mebibytes(path: Path) -> None:
    """The write-ahead log is used again from its begin; what it was longer once is given back."""
    async with DeliveryLedger(path) as ledger:
        log = path.with_name(f"{path.name}-wal")
        await ledger.done(KEY, "x" * 10 * 2**20)
        assert log.stat().st_size > 18 * 2**20
        await ledger.done(KEY, OUT)
        assert log.stat().st_size == 16 * 2**20


def held_open(folder: Path) -> list[str]:
    """Name the files below a folder of which this process has descriptors."""
    there = {(each.stat().st_dev, each.stat().st_ino): each.name for each in folder.rglob("*")}
    names = []
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):
            found = os.fstat(int(each.name))
            names.append(there.get((found.st_dev, found.st_ino), ""))
    return [name for name in names if name]


async def test_a_ledger_that_is_closed_keeps_no_file_open(tmp_path: Path, path: Path, folder: Path) -> None:
    """An adapter that is begun anew each minute would use up the descriptors of the process."""
    async with DeliveryLedger(path, log=LedgerLog(folder, "one")) as ledger:
        await ledger.done(KEY, OUT)
        assert held_open(tmp_path)
    assert held_open(tmp_path) == []


async def test_a_job_of_two_changes_tells_of_both_and_one_that_is_part_of_another_not(
    path: Path, folder: Path
) -> None:
    file = LedgerFile(path, lambda: AT, LedgerLog(folder, "one"))

    def both(rows: Rows) -> None:
        rows.sent_last(key=KEY, out_id="a", piece=0, platform_id="m1", put_at=None)
        rows.done(key=KEY, out_id="b")

    await file.start()
    await file.ask(both)
    await file.stop()

    assert [
        (note.do, note.arguments["out_id"]) for _, _, note, _ in LedgerLog(folder, "late").others({})
    ] == [
        ("sent_last", "a"),
        ("done", "b"),
    ]


@pytest.mark.parametrize("shared", [True, False])
async def test_where_nobody_is_told_no_note_gathers_in_memory(path: Path, folder: Path, shared: bool) -> None:
    """A daemon that runs for months would grow."""
    file = LedgerFile(path, lambda: AT, LedgerLog(folder, "") if shared else None)
    await file.start()
    for number in range(3):
        await file.ask(lambda rows, out_id=str(number): rows.done(key=KEY, out_id=out_id))  # type: ignore[misc]
    assert not await file.ask(lambda rows: rows.notes)
    await file.stop()


def test_how_many_notes_of_others_were_done_is_said(folder: Path) -> None:
    """None the second time."""
    log = LedgerLog(folder, "other")
    log.append([Note("done", {"key": KEY, "out_id": str(number)}) for number in range(3)], 1)
    log.close()
    with durable.in_memory(durable.Schema(TABLES, VERSION, 0)) as file:
        rows = Rows(file, lambda: AT)
        assert [rows.merge(LedgerLog(folder, "one")) for _ in range(2)] == [3, 0]


async def test_what_is_traced_is_the_same_here_and_on_any_machine(
    tmp_path: Path, path: Path, folder: Path
) -> None:
    """To the row: a letter by its own id, its pieces, whose outcome is unknown how often."""
    id_ = 'fake:"1\\\n'
    async with DeliveryLedger(path, clock=lambda: AT, log=LedgerLog(folder, "one")) as ledger:
        await ledger.sent(KEY, id_, 0, platform_id="m1", last=True)
        await ledger.trying(KEY, f"{id_}#2", 0)
        await ledger.trying(KEY, f"{id_}#2", 0)
        await ledger.done(KEY, f"{id_}2")

    rows = [
        SentRow(KEY, id_, None, AT, "", 0),
        SentRow(KEY, id_, 0, AT, "m1", 0),
        SentRow(KEY, f"{id_}#2", 0, AT, "", 2),
    ]
    assert rows_of(path, id_) == rows
    assert rows_noted(tmp_path / "state", id_) == rows
