"""What ``/new`` leaves for memory: durable, done once, and never waited for."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.models.model import Answer, Echo, Prompt
from tests.session.memory_place import ADA, BOB, jobs_in, open_workspace, saved, talk
from tests.session.rollover_victim import roll


async def test_new_waits_for_no_model(tmp_path: Path) -> None:
    """``/new`` is done before the model is asked; the whole tail goes into memory afterwards."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with open_workspace(tmp_path, slow, run=True) as workspace:
        await workspace.said(ADA, talk(7))
        async with asyncio.timeout(30):
            assert await workspace.new(ADA)
            await workspace.model.asked(1)
            await workspace.said(BOB, talk(2))
        assert "message 6" in workspace.model.text(0)
        assert len(jobs_in(tmp_path)) == 1
        go.set()
        await workspace.jobs.settled()

        assert jobs_in(tmp_path) == []
        (archived,) = (tmp_path / "sessions/archive/telegram_1").glob("*.jsonl")
        head, *lines = archived.read_text().strip().split("\n")
        assert json.loads(head)["last_consolidated"] == len(lines) == 7


async def test_new_without_messages_asks_nobody(tmp_path: Path) -> None:
    """A chat that has said nothing has nothing to remember."""
    async with open_workspace(tmp_path) as workspace:
        assert not await workspace.new(ADA)

    assert jobs_in(tmp_path) == []


async def test_new_again_is_known(tmp_path: Path) -> None:
    """A redelivered ``/new`` finds its job; once that is done it is not done again."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)
        assert await workspace.new(ADA)
        await workspace.jobs.settled()
        assert await workspace.new(ADA)
        await workspace.jobs.settled()

        assert len(workspace.model.seen) == 1
        assert jobs_in(tmp_path) == []


async def test_new_that_comes_again_as_its_job_ends_leaves_no_file_behind(tmp_path: Path) -> None:
    """A file that is written anew when the one before it was just struck out is struck out as well."""
    answer = asyncio.Event()
    comes_again, struck, told = threading.Event(), threading.Event(), threading.Event()

    async def slow(prompt: Prompt) -> Answer:
        await answer.wait()
        return saved()

    class InTurn(JobFiles):
        summaries = 0

        def keep(self, job: BackgroundJob) -> None:
            self.summaries += job.kind == "summary"
            if self.summaries == 2:
                comes_again.set()
                struck.wait(30)
            super().keep(job)

        def strike(self, job: BackgroundJob, **more: Any) -> None:
            super().strike(job, **more)
            if job.kind == "consolidate" and not struck.is_set():
                struck.set()
                told.wait(30)

    async with open_workspace(tmp_path, slow, run=True, files=InTurn(tmp_path / "state")) as workspace:
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)
        again = asyncio.ensure_future(workspace.new(ADA))
        assert await asyncio.to_thread(comes_again.wait, 30)
        answer.set()
        assert await again
        told.set()
        await workspace.jobs.settled()

        assert jobs_in(tmp_path) == []
        assert len(workspace.model.seen) == 1


@pytest.mark.parametrize("seen_to", [False, True])
async def test_new_sees_to_a_compaction_whose_process_died(tmp_path: Path, seen_to: bool) -> None:
    """What a compaction ended goes into memory once, also where nobody asked anything before ``/new``."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(6))
        async with workspace.store.open(ADA) as session:
            ended = await roll(session, 4)
        assert ended is not None
        if seen_to:
            await workspace.jobs.left(ADA, ended)
    async with open_workspace(tmp_path, run=True) as workspace:
        if seen_to:
            await workspace.jobs.settled()
        await workspace.new(ADA)
        await workspace.jobs.settled()

        asked = [workspace.model.text(call) for call in range(len(workspace.model.seen))]
        assert sum("message 3" in text for text in asked) == 1
        assert sum("message 5" in text for text in asked) == 1
        assert jobs_in(tmp_path) == []


async def test_only_the_tail_after_a_window(tmp_path: Path) -> None:
    """``/new`` takes what a window has left, each message once."""
    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        await workspace.new(ADA)
        await workspace.jobs.settled()

        assert "message 4" not in workspace.model.text(1)
        assert "message 5" in workspace.model.text(1)
        assert (await workspace.read("HISTORY.md")).count("<!-- session") == 2


async def test_jobs_wait_for_a_real_model(tmp_path: Path) -> None:
    """What ended under ``echo`` goes into memory once a model is configured."""
    async with open_workspace(tmp_path, model=Echo()) as workspace:
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)

    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.model.asked(1)
        await workspace.jobs.settled()
        assert "- fact 1" in await workspace.read("MEMORY.md")


async def test_a_job_of_a_deleted_session_is_dropped(tmp_path: Path) -> None:
    """A job whose archive is gone ends without a call."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(4))
        await workspace.new(ADA)
    for path in (tmp_path / "sessions/archive/telegram_1").iterdir():
        path.unlink()

    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        assert workspace.model.seen == []
    assert jobs_in(tmp_path) == []
