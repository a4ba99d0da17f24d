"""Background work and kill -9: nothing is lost, nothing is noted twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.session.memory_place import jobs_in
from tests.session.memory_victim import lines_of

ROOT = Path(__file__).parents[3]


LIVE = ["ask.before", "ask.after", *(f"{name}.{side}" for name in ("desk", "history", "memory", "pointer")
                                     for side in ("before", "after"))]  # fmt: skip


ENDED = ["end.after", "job.before", "job.after", *LIVE, "strike.before", "strike.after"]


async def victim(workspace: Path, task: str, point: str, number: int = 1) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.session.memory_victim", str(workspace), task, point, str(number)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


def calls(workspace: Path) -> int:
    path = workspace / "calls"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.parametrize(
    ("point", "number"), [*((point, 1) for point in LIVE), ("desk.before", 2), ("desk.after", 2)]
)
async def test_kill_during_a_window(tmp_path: Path, point: str, number: int) -> None:
    """Wherever it dies, the next try ends with one paragraph, the notes and the pointer."""
    await asyncio.to_thread(lines_of, tmp_path)

    assert await victim(tmp_path, "live", point, number) == -signal.SIGKILL
    assert await victim(tmp_path, "live", "none") == 0

    folder = tmp_path / "memory/chats/telegram_1"
    assert (folder / "HISTORY.md").read_text().count("They talked.") == 1
    assert (folder / "MEMORY.md").read_text() == "- remembered\n"
    assert (
        json.loads((tmp_path / "sessions/telegram_1.jsonl").read_text().split("\n")[0])["last_consolidated"]
        == 5
    )
    asked_again = point in ("ask.before", "ask.after") or (point, number) == ("desk.before", 1)
    assert calls(tmp_path) == (2 if point != "ask.before" and asked_again else 1)
    assert json.loads((tmp_path / "state/memory/chats/telegram_1.json").read_text())["answer"] is None


@pytest.mark.parametrize("point", ENDED)
async def test_kill_after_new(tmp_path: Path, point: str) -> None:
    """Wherever it dies after ``/new``, a restart finishes the work: nothing lost, nothing twice."""
    await asyncio.to_thread(lines_of, tmp_path)

    assert await victim(tmp_path, "ended", point) == -signal.SIGKILL
    again = "ended" if point in ("end.after", "job.before") else "rest"  # unanswered: /new comes again
    assert await victim(tmp_path, again, "none") == 0

    folder = tmp_path / "memory/chats/telegram_1"
    assert (folder / "HISTORY.md").read_text().count("They talked.") == 1
    assert (folder / "MEMORY.md").read_text() == "- remembered\n"
    assert jobs_in(tmp_path) == []
    (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
    head, *lines = archived.read_text().strip().split("\n")
    assert json.loads(head)["last_consolidated"] == len(lines) == 10
    assert calls(tmp_path) == (2 if point in ("ask.after", "desk.before") else 1)
