"""The list of running daemons: of this machine and container, beside those of others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

import durable
from gateway.app import daemons
from gateway.app.daemons import FOREIGN_MAX, DaemonRegistry
from gateway.errors import NewerState
from tests.support.until import until


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


def disk_refuses(held: ExitStack, workspace: Path) -> None:
    """Let the list not be written, as on a full disk."""
    path = workspace / "state" / "daemon.json"
    path.unlink(missing_ok=True)
    path.mkdir()
    held.callback(path.rmdir)


def lock_is_held(held: ExitStack, workspace: Path) -> None:
    """Hold the list's lock, as a stopped process does."""
    held.enter_context(durable.locked(workspace / "state" / "daemon.lock"))


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody wait long for the lock."""
    monkeypatch.setattr(daemons, "ADDS_WITHIN_S", 0.2)
    monkeypatch.setattr(daemons, "REMOVES_WITHIN_S", 0.2)


@pytest.mark.parametrize("refuse", [disk_refuses, lock_is_held])
@pytest.mark.parametrize("event", ["daemon.unlisted", "daemon.left_listed"])
@pytest.mark.usefixtures("briefly")
async def test_one_that_the_list_does_not_take_or_keeps_starts_and_ends_all_the_same(
    workspace: Path, refuse: Callable[[ExitStack, Path], None], event: str
) -> None:
    with capture_logs() as logged, ExitStack() as held:
        if event == "daemon.unlisted":
            refuse(held, workspace)
        async with DaemonRegistry(workspace).listed(url="", role="all"):
            if event == "daemon.unlisted":
                held.close()
                assert DaemonRegistry(workspace).running() == []
            else:
                refuse(held, workspace)

    assert [(line["event"], line["log_level"]) for line in logged] == [(event, "warning")]


async def test_a_list_of_a_newer_version_refuses_a_start_and_no_end(workspace: Path) -> None:
    path = workspace / "state" / "daemon.json"
    newer = orjson.dumps({"v": 99, "daemons": []})
    with capture_logs() as logged:
        async with DaemonRegistry(workspace).listed(url="", role="all"):
            path.write_bytes(newer)

    assert [line["event"] for line in logged] == ["daemon.left_listed"]
    with pytest.raises(NewerState):
        async with DaemonRegistry(workspace).listed(url="", role="all"):
            raise AssertionError("it was not to start")
    assert path.read_bytes() == newer


async def test_the_loop_goes_on_while_the_list_is_locked(workspace: Path) -> None:
    """On both ends it waits for the lock in a thread."""
    lock = workspace / "state" / "daemon.lock"
    leaving = asyncio.Event()

    async def stand() -> None:
        async with DaemonRegistry(workspace).listed(url="", role="all"):
            await leaving.wait()

    with capture_logs() as logged:
        with durable.locked(lock):
            standing = asyncio.create_task(stand())
            await asyncio.sleep(0.1)
        await until(lambda: bool(DaemonRegistry(workspace).running()))
        with durable.locked(lock):
            leaving.set()
            await asyncio.sleep(0.1)
            assert not standing.done()
        await standing

    assert DaemonRegistry(workspace).running() == []
    assert logged == []
