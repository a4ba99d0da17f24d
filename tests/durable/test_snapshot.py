"""A SQLite file that another process keeps to itself is copied as of one of its commits, whatever it does."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable import Damaged, snapshot
from tests.support.guarantee import guarantee

# Each commit adds a row to both tables; now and then the log is begun anew, or the file rewritten.
WRITER = """
import itertools, sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("PRAGMA locking_mode=EXCLUSIVE")
file.execute("PRAGMA journal_mode=WAL")
file.execute("PRAGMA wal_autocheckpoint=20")
file.execute("CREATE TABLE one (n INTEGER, filler BLOB)")
file.execute("CREATE TABLE two (n INTEGER, filler BLOB)")
print("ready", flush=True)
for n in itertools.count(1):
    file.execute("BEGIN IMMEDIATE")
    file.execute("INSERT INTO one VALUES (?, zeroblob(3000))", (n,))
    file.execute("INSERT INTO two VALUES (?, zeroblob(3000))", (n,))
    file.execute("DELETE FROM one WHERE n < ?", (n - 300,))
    file.execute("DELETE FROM two WHERE n < ?", (n - 300,))
    file.execute("COMMIT")
    print(n, flush=True)
    if n % 50 == 0:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if n % 170 == 0:
        file.execute("VACUUM")
"""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Run the writer; yields the file in which it says how far it came."""
    told = path.with_suffix(".told")
    with told.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=out)
    try:
        while not told.read_bytes().startswith(b"ready\n"):
            assert process.poll() is None
            time.sleep(0.01)
        yield told
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def newest(told: Path) -> int:
    """The number of the last commit that was reported done."""
    lines = told.read_bytes().split(b"\n")[:-1]
    return int(lines[-1]) if lines[-1].isdigit() else 0


@guarantee("storage", "The copy of a SQLite file in use equals one of its commits.")
def test_each_copy_is_one_commit_and_holds_all_that_was_done_before(tmp_path: Path) -> None:
    with writing(tmp_path / "live.db") as told:
        for number in range(40):
            before, copy = newest(told), tmp_path / f"{number}.db"
            snapshot(tmp_path / "live.db", copy)
            with contextlib.closing(sqlite3.connect(copy)) as file:
                rows = [
                    file.execute(f"SELECT min(n), max(n), count(*) FROM {name}").fetchone()
                    for name in ("one", "two")
                ]
            assert rows[0] == rows[1]
            least, most, count = rows[0] if rows[0][2] else (1, 0, 0)
            assert count == most - least + 1
            assert before <= most <= newest(told) + 1
            copy.unlink()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    live = tmp_path / "live.db"
    with contextlib.closing(sqlite3.connect(live)) as file, file:
        file.execute("CREATE TABLE one (n INTEGER)")
        file.executemany("INSERT INTO one VALUES (?)", [(n,) for n in range(5000)])
    data = bytearray(live.read_bytes())
    data[4096:9000] = b"x" * (9000 - 4096)
    live.write_bytes(data)

    with pytest.raises(Damaged, match="copy"):
        snapshot(live, tmp_path / "copy.db")
