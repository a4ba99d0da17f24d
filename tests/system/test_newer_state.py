"""What a newer version left is refused by a start with a clear sentence and exit code 78, and not touched."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, command

pytestmark = guarantee("storage", "A gateway refuses the files of a newer version and leaves them unchanged.")


def raised(path: Path) -> None:
    """Give a file the number of a version to come."""
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            file.execute("PRAGMA user_version=9")
        return
    path.write_text(re.sub(r'"v": ?1\b', '"v":9', path.read_text() if path.exists() else '{"v":1}', count=1))


@pytest.mark.parametrize(
    "name",
    [
        "state/workspace.json",
        "state/queue.db",
        "state/daemon.json",
        "state/keys/cli_waiting.lock",
        "state/keys/cli_waiting.log",
    ],
)
async def test_a_start_refuses_it(tmp_path: Path, name: str) -> None:
    workspace = tmp_path / "old"
    shutil.copytree(ROOT / "tests" / "data" / "old-workspace", workspace)
    raised(workspace / name)
    before = (workspace / name).read_bytes()

    daemon = await Daemon(workspace).start(wait=False)
    code = await daemon.died()

    assert code == 78, daemon.log.decode()
    assert b"written by a newer version of chat-gateway: version 9, not 1" in daemon.log
    assert b"install that version of chat-gateway" in daemon.log
    assert (workspace / name).read_bytes() == before


async def test_a_start_notes_the_form_and_a_damaged_note_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "workspace.json").write_text("{")
    async with Daemon(tmp_path) as daemon:
        assert await daemon.stop() == 0

    assert (tmp_path / "state" / "workspace.json").read_text().startswith('{"v":1,"program":"')
    assert (await command(tmp_path, "chat", "-m", "hi")) == (0, "echo: hi\n")
