"""Several processes write ``channels.db``: no commit is lost, its log stays short, a copy is whole."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import durable
from durable import channels_database
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

pytestmark = guarantee("storage", "No commit to `channels.db` is lost while several processes write it.")

WRITER = """
import sys
from pathlib import Path
import durable

state, name, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with durable.open_channels(state, down=lambda error: RuntimeError(str(error))) as database:
    for number in range(rows):
        row = (f"{name} {number}", "x" * 20_000)
        insert = "INSERT INTO moved_chats VALUES ('telegram', ?, ?, 0)"
        database.change(lambda file: file.execute(insert, row).rowcount)
        print(number, flush=True)
"""


def down(error: Exception) -> Exception:
    return RuntimeError(str(error))


def opened(state: Path) -> channels_database.ChannelsDatabase:
    database = channels_database.ChannelsDatabase(state, down=down)
    database.open()
    return database


def writing(state: Path, name: str, rows: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(state), name, str(rows)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def names(file: sqlite3.Connection) -> set[str]:
    return {old for (old,) in file.execute("SELECT old FROM moved_chats")}


def add(database: channels_database.ChannelsDatabase, name: str, size: int = 1) -> None:
    row = ("telegram", name, "x" * size, 0)
    database.change(lambda file: file.execute("INSERT INTO moved_chats VALUES (?, ?, ?, ?)", row).rowcount)


def test_what_killed_and_finished_processes_committed_is_there(tmp_path: Path) -> None:
    """Over 20 MB, so that each makes checkpoints beside the others; a copy made meanwhile is sound."""
    state = tmp_path / "state"
    processes = {name: writing(state, name, 400) for name in ("a", "b", "c")}
    said: dict[str, int] = {}
    try:
        killed = processes["c"]
        assert killed.stdout is not None
        for _ in range(100):
            said["c"] = int(killed.stdout.readline())
        durable.copy_database(state / "channels.db", tmp_path / "copy.db", lambda _: None)
        killed.send_signal(signal.SIGKILL)
        assert (processes["a"].wait(120), processes["b"].wait(120)) == (0, 0)
    finally:
        for each in processes.values():
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()

    with durable.reading_channels(state, down=down) as file:
        found = names(file)
    assert {f"{name} {number}" for name in "ab" for number in range(400)} <= found
    assert {f"c {number}" for number in range(said["c"] + 1)} <= found
    with closing(sqlite3.connect(tmp_path / "copy.db")) as file:
        assert {f"c {number}" for number in range(100)} <= names(file)


def test_the_log_is_emptied_at_eight_mebibytes_unless_a_reader_needs_it(tmp_path: Path) -> None:
    log = tmp_path / "channels.db-wal"
    database = opened(tmp_path)
    try:
        with closing(sqlite3.connect(tmp_path / "channels.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert names(reader) == set()
            add(database, "a", 9 * 2**20)
            assert log.stat().st_size > 9 * 2**20
        add(database, "b", 9 * 2**20)
        assert log.stat().st_size == 0
        assert names(database.file) == {"a", "b"}
    finally:
        database.close()


def test_a_process_that_stops_while_it_commits_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading is answered, writing refused; it can be closed, and go on once the lock is free."""
    monkeypatch.setattr(channels_database, "_WAIT_S", 0.05)
    database = opened(tmp_path)
    add(database, "a")
    fd = durable.open_private(tmp_path / "channels.lock")
    assert durable.try_lock(fd)
    outcomes = database.commit(
        [durable.Job(lambda: names(database.file), writes=False), durable.Job(lambda: None)]
    )
    assert outcomes[0] == {"a"}
    assert "channels.lock is held by another process" in str(outcomes[1])
    with pytest.raises(RuntimeError, match=r"channels\.lock"), durable.open_channels(tmp_path, down=down):
        pass
    os.close(fd)
    add(database, "b")
    database.close()
    with durable.reading_channels(tmp_path, down=down) as file:
        assert names(file) == {"a", "b"}


def test_what_fails_within_a_change_is_undone_and_told(tmp_path: Path) -> None:
    def half(file: sqlite3.Connection) -> None:
        file.execute("INSERT INTO moved_chats VALUES ('telegram', 'a', 'b', 0)")
        raise KeyError("odd")

    with durable.open_channels(tmp_path, down=down) as database:
        with pytest.raises(KeyError, match="odd"):
            database.change(half)
        assert names(database.file) == set()


def test_a_file_without_tables_yet_reads_as_empty(tmp_path: Path) -> None:
    (tmp_path / "channels.db").touch()
    with durable.reading_channels(tmp_path, down=down) as file:
        assert names(file) == set()
