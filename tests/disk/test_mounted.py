"""On a disk that forgets: what the product found and did not write itself survives a cut all the same."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest

import durable
from session.errors import StoreError
from session.store.state import workspace_state
from session.store.store import Store
from tests.disk.model import Fate
from tests.disk.mount import ROOT, Mount, why_not
from tests.disk.promises import broken_promises
from tests.session.store_place import ADA, turn
from tests.support.guarantee import guarantee

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
NOTHING = Fate(random.Random(0), names=0, data=0)
UNSYNCED = [("written", [True, False]), ("committed", [True, True]), ("appended", [True, True])]
# Its process dies right before or behind the second commit, or behind its append.
DIES_UNSYNCED = """
import asyncio, os, signal, sys
from datetime import UTC
from pathlib import Path
from durable import append_whole, state_database
from session.store.state import workspace_state
from session.store.store import Store
from tests.session.store_place import ADA, turn
def die():
    os.kill(os.getpid(), signal.SIGKILL)
async def main():
    store = Store(Path(sys.argv[1]), zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        if sys.argv[2] == "appended":
            state_database.append_whole = lambda *args, **more: (append_whole(*args, **more), die())
        workspace_state(Path(sys.argv[1]) / "state").at = lambda name: name == sys.argv[2] and die()
        await session.append(turn("b"))
asyncio.run(main())
"""


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Mount]:
    mount = Mount(tmp_path / "disk", tmp_path / "saved")
    await mount.mount()
    yield mount
    await mount.remove()


async def finals(workspace: Path) -> list[bool]:
    """Say of the messages a and b whether they are answered, as a process does that takes over."""
    store = Store(workspace, zone=UTC)
    try:
        async with store.open(ADA) as session:
            found = [session.find(id_) for id_ in "ab"]
            return [one is not None and one.final is not None for one in found]
    finally:
        await store.aclose()


async def left_with_an_answer(disk: Mount) -> Path:
    """Answer one message, then unmount; return the workspace."""
    workspace = disk.folder / "w"
    store = Store(workspace, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
    await store.aclose()
    await disk.unmount()
    return workspace


@guarantee("storage", "Everything that is reported as stored survives a power cut.")
async def test_what_is_promised_outlasts_a_cut(tmp_path: Path) -> None:
    assert await broken_promises(tmp_path) == []


@guarantee("once", "A reply that a killed process stored is not generated again after a power cut.")
@pytest.mark.parametrize(("unsynced", "known"), UNSYNCED)
async def test_what_a_new_owner_has_read_survives_a_cut(
    disk: Mount, unsynced: str, known: list[bool]
) -> None:
    """A reply that was told by the lines of a process which died before its sync is not made anew."""
    workspace = disk.folder / "w"
    died = subprocess.run([sys.executable, "-c", DIES_UNSYNCED, workspace, unsynced], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    assert await finals(workspace) == known

    await disk.lose_power(NOTHING)

    assert await finals(workspace) == known


@guarantee("loss", "A repeated publish is confirmed only when its stored message survives a power cut.")
async def test_a_row_that_was_found_at_the_start_survives_a_cut(disk: Mount) -> None:
    """A put that comes again is confirmed by the row that is there: so it is on disk by then."""
    schema = durable.Schema(["CREATE TABLE numbers (n INTEGER UNIQUE)"], 1, 2**20)
    path = disk.folder / "numbers.db"

    def opened() -> durable.Database:
        database = durable.Database(path, schema, down=lambda error: error, alone=True)
        database.open()
        return database

    opened().close()
    dies = "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
    dies += "for each in 'PRAGMA synchronous=OFF', 'INSERT INTO numbers VALUES (7)': db.execute(each)\n"
    subprocess.run([sys.executable, "-c", dies + "os._exit(0)", path], check=True)
    database = opened()
    assert database.file.execute("SELECT n FROM numbers").fetchall() == [(7,)]
    # Its process is killed, as far as the disk can tell: a close would write the log into the file.
    assert path.with_name("numbers.db-wal").stat().st_size > 0
    await disk.lose_power(NOTHING)

    again = sqlite3.connect(path)
    assert again.execute("SELECT n FROM numbers").fetchall() == [(7,)]
    again.close()


@guarantee(
    "storage", "The gateway reports a disk error in a chat's files as a disk error, and recovers from it."
)
@pytest.mark.parametrize("call", ["make", "rename", "unlink", "write", "sync"])
async def test_whatever_the_disk_refuses_is_told_as_such(disk: Mount, call: str) -> None:
    """Of another error a turn would be counted as one that crashed, and its message set aside in the end."""
    workspace = await left_with_an_answer(disk)
    before = disk.saved.read_bytes()
    told = 0
    for number in (1, 2, 3, 5, 8):
        disk.saved.write_bytes(before)
        await disk.mount("--refuse", f"{call}:{number}:2:ENOSPC")
        # Another process takes the conversation over, answers, and ends it.
        store = Store(workspace, zone=UTC)
        for _ in range(4):
            with contextlib.suppress(StoreError):
                async with store.open(ADA) as session:
                    if session.find("b") is None:
                        await session.append(turn("b"))
                    await session.end()
                await store.clear(ADA)
                break
            told += 1
        else:
            pytest.fail(f"{call} {number} is never got over")
        await store.aclose()
        await disk.unmount()
    assert told
    await disk.mount()


@guarantee("storage", "Lines that the disk refused to sync are stored again.")
async def test_what_a_refused_sync_left_is_not_taken_for_stored(disk: Mount) -> None:
    """Linux calls pages clean that it could not write: no later sync brings them to the disk."""
    workspace = await left_with_an_answer(disk)
    before = disk.saved.read_bytes()
    for number in range(1, 5):
        disk.saved.write_bytes(before)
        await disk.mount("--refuse", f"append:{number}:1:EIO")
        store, state = Store(workspace, zone=UTC), workspace_state(workspace / "state")
        for _ in range(4):
            with contextlib.suppress(StoreError):
                async with store.open(ADA) as session:
                    if session.find("b") is None:
                        await session.append(turn("b"))
                break
        with contextlib.suppress(durable.StateUnavailable):
            await state.flush()
        await state.flush()
        assert await state.read("SELECT count(*) FROM file_ops") == [(0,)]
        await store.aclose()

        await disk.lose_power(NOTHING)

        lines = (workspace / "sessions/telegram_1.jsonl").read_bytes().splitlines()
        assert len(lines) == 5
        assert await finals(workspace) == [True, True]
        await disk.unmount()
    await disk.mount()
