"""The list of running daemons: of this machine and container, beside those of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from gateway.app.daemons import FOREIGN_MAX, DaemonRegistry


def rows(workspace: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = orjson.loads((workspace / "state" / "daemon.json").read_bytes())[
        "daemons"
    ]
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


def test_one_that_runs_is_listed_and_one_that_ended_is_not(workspace: Path) -> None:
    with DaemonRegistry(workspace).entry(url="http://127.0.0.1:1", role="all"):
        (running,) = DaemonRegistry(workspace).running()
        assert (running.pid, running.role) == (os.getpid(), "all")

    assert DaemonRegistry(workspace).running() == []


def test_one_of_an_older_version_is_known(workspace: Path) -> None:
    """Its entry holds the ticks alone."""
    with DaemonRegistry(workspace).entry(url="", role="session"):
        (row,) = rows(workspace)
        old = row | {"birth": str(row["birth"]).partition("@")[0]}
        (workspace / "state" / "daemon.json").write_bytes(orjson.dumps({"v": 1, "daemons": [old]}))

        assert [one.role for one in DaemonRegistry(workspace).running()] == ["session"]


def test_those_of_other_containers_are_left_alone_and_bounded(workspace: Path) -> None:
    """Their numbers mean other processes here: they are not believed, and not taken away either."""
    me = os.getpid()
    theirs = [
        {"pid": me, "birth": f"{number}@other", "url": "", "role": "session", "started_at": "2026-01-01"}
        for number in range(FOREIGN_MAX + 5)
    ]
    (workspace / "state" / "daemon.json").write_bytes(orjson.dumps({"v": 1, "daemons": theirs}))

    with DaemonRegistry(workspace).entry(url="", role="channels"):
        running = DaemonRegistry(workspace).running()
        assert [one.role for one in running] == ["channels"]
        assert len(rows(workspace)) == FOREIGN_MAX + 1
    assert [row["birth"] for row in rows(workspace)] == [row["birth"] for row in theirs[5:]]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_container_of_its_own_takes_no_entry_away(workspace: Path) -> None:
    """Over one workspace, a process in another space of numbers sees none of ours, and ours stays."""
    code = (
        "import pathlib, sys; from gateway.app.daemons import DaemonRegistry as Registry\n"
        "registry = Registry(pathlib.Path(sys.argv[1]))\n"
        "with registry.entry(url='', role='channels'): print([one.role for one in registry.running()])"
    )
    with DaemonRegistry(workspace).entry(url="", role="session"):
        inside = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, workspace],
            capture_output=True,
            text=True,
            check=True,
        )

        assert inside.stdout == "['channels']\n"
        assert [one.role for one in DaemonRegistry(workspace).running()] == ["session"]
