"""A repair that dies at any point leaves each file as it was or repaired; run again it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor.workspace import cron_damage, fix
from session.background.job_files import BackgroundJob, JobFiles
from session.transcript.loading import read_beginning
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT
from tests.support.kept import KEY, talked, verified
from tests.support.place import write

TORN = '{"role": "us\n'
# Each sound line of the damaged files, which no death may cost.
KEPT = {
    "sessions/web_a.jsonl": b"again",
    "memory/chats/web_a/MEMORY.md": b"likes ",
    "memory/people/ada/facts.jsonl": b'"mine": true',
    "agents/clerk/memory/facts.jsonl": b'"mine": true',
    "cron/action.jsonl": b'"action": "del"',
    "state/subagents/sessions/sub_x.jsonl": b"again",
}


async def damaged(workspace: Path) -> BackgroundJob:
    """Damage a file of each kind; return the job whose file is none."""
    await talked(workspace)
    sound = (workspace / "sessions" / "web_a.jsonl").read_text()
    (archived,) = (workspace / "sessions" / "archive" / "web_a").glob("*.jsonl")
    begun = read_beginning(archived, "web_a")
    assert begun is not None
    job = BackgroundJob(KEY, begun.session_id)
    JobFiles(workspace / "state").keep(job)
    (job_file,) = (workspace / "state" / "jobs").iterdir()
    texts = {
        "sessions/web_a.jsonl": sound + TORN,
        str(archived.relative_to(workspace)): archived.read_text() + TORN,
        "memory/chats/web_a/MEMORY.md": "likes \0tea\n",
        "memory/people/ada/facts.jsonl": '{"id": "1", "mine": true}\nnot json\n',
        "agents/clerk/memory/facts.jsonl": '{"id": "1", "mine": true}\nnot json\n',
        "cron/action.jsonl": '{"action": "del", "params": {"job_id": "1"}}\nno json\n',
        "state/subagents/sessions/sub_x.jsonl": sound + TORN,
        "state/index/web_b.idx": "no index",
        str(job_file.relative_to(workspace)): "no json",
    }
    for name, text in texts.items():
        write(workspace / name, text)
    return job


async def problems(workspace: Path) -> list[str]:
    rows = [*await verified(workspace), *cron_damage(workspace)]
    return [f"{row['file']}: {row['problem']}" for row in rows]


@guarantee(
    "storage",
    "A killed repair leaves each file unchanged or repaired, and the next repair finishes the rest.",
)
@pytest.mark.parametrize("way", ["verify", "fix"])
async def test_a_repair_that_dies_anywhere_is_ended_by_the_next(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    job = await damaged(folder)
    found = await problems(folder)

    command = [sys.executable, "-m", "tests.gateway.repair_victim", str(folder), way]
    children = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300, cwd=ROOT).stdout)

    assert len(found) == 9
    assert children > 30
    for number in range(1, children + 1):
        copy = folder.with_name(f"w-{number}")
        for name, kept in KEPT.items():
            assert kept in (copy / name).read_bytes(), (number, name)
        # What is left to be done is a part of what there was: nothing new is damaged.
        assert number % 4 or set(await problems(copy)) <= set(found), number
    for number in (*range(1, children, 9), children):
        copy = folder.with_name(f"w-{number}")
        assert await asyncio.to_thread(mended, copy) == []
        assert await problems(copy) == [], number
        assert JobFiles(copy / "state").left() == [job], number


def mended(workspace: Path) -> list[str]:
    """Run it again; return what could not be mended."""
    settings = Settings.model_validate({"workspace": workspace})
    return [text for text, cure in fix(settings) if cure]
