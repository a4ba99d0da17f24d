"""State of another version is refused with exit code 78; ``run --reset-state`` begins without it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.app import state_folder
from session.store.state import workspace_state
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, ask, command
from tests.support.place import lines_of
from tests.system.test_daemon import refused


def sample(folder: Path) -> Path:
    """Copy the workspace that a killed gateway left."""
    return Path(shutil.copytree(ROOT / "tests" / "data" / "old-workspace", folder / "old"))


def raised(path: Path) -> None:
    """Give a file the number of a version to come."""
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            file.execute("PRAGMA user_version=9")
        return
    path.write_text(re.sub(r'"v": ?1\b', '"v":9', path.read_text(), count=1))


@guarantee("storage", "A gateway refuses the files of a newer version and leaves them unchanged.")
@pytest.mark.parametrize(
    "name",
    ["state/gateway.db", "state/daemon.json"],
)
async def test_a_start_refuses_a_newer_file(tmp_path: Path, name: str) -> None:
    workspace = sample(tmp_path)
    raised(workspace / name)
    before = (workspace / name).read_bytes()

    code, said = await refused(workspace)

    assert code == 78, said
    assert "written by a newer version of chat-gateway: version 9, not " in said
    assert "install that version of chat-gateway" in said
    assert (workspace / name).read_bytes() == before


@guarantee("storage", "State of an earlier development version is refused unchanged; a reset moves it aside.")
@pytest.mark.parametrize("name", ["workspace.json", "queue.db", "delivery-telegram.db"])
async def test_state_of_an_earlier_version_is_refused_until_a_reset(tmp_path: Path, name: str) -> None:
    """Conversations stay, and what waited in the former queue is not answered."""
    workspace = sample(tmp_path)
    (workspace / "state" / name).write_bytes(b"earlier")
    before = sorted((workspace / "state").rglob("*"))

    code, said = await refused(workspace)
    verb = await command(workspace, "sessions", "list")

    assert code == verb[0] == 78
    assert f"written by an earlier development version (it holds {name})" in said
    assert "chat-gateway run --reset-state" in said
    assert sorted((workspace / "state").rglob("*")) == before

    lines = lines_of(workspace, "cli_tools")
    async with Daemon(workspace, verb=("run", "--reset-state")) as reset:
        answer = await ask(reset, "cli:tools", "cli:new", "hello again")
        status = await command(workspace, "status", "--json")
        beside = await command(workspace, "run", "--reset-state")
        assert await reset.stop() == 0

    [former] = workspace.glob("state-before-reset-*")
    assert f"the former state is in {former}" in reset.log.decode()
    assert (former / name).read_bytes() == b"earlier"
    assert answer is not None
    assert lines_of(workspace, "cli_tools")[: len(lines)] == lines
    assert json.loads(status[1])["queues"]["parked"]["count"] == 0
    assert beside[0] == 73


async def test_a_reset_keeps_lines_that_a_power_cut_took_from_their_file(tmp_path: Path) -> None:
    store = Store(tmp_path, zone=UTC)
    async with store.open(SessionKey("cli:ada")) as session:
        await session.append([make_line("user", "hello", datetime.now(UTC).isoformat(), message_id="a")])
        path = session.path
    whole = path.read_bytes()
    # As in a crash, the end flushes nothing.
    workspace_state(tmp_path / "state").database._appended.clear()
    await store.aclose()
    path.write_bytes(whole[:-9])

    assert state_folder.reset(tmp_path, list) is not None

    assert path.read_bytes() == whole
