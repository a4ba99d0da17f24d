"""A session that is opened again and ends again while its job runs: what came to it waits durably."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

from session.background.job_files import BackgroundJob, JobFiles
from session.errors import ModelAway
from session.models.model import Answer, Prompt
from tests.session.boundary_place import reopen
from tests.session.memory_place import ADA, Workspace, jobs_in, open_workspace, saved, talk

AWAY = ModelAway("gone", cause="unreachable")


async def end(workspace: Workspace) -> str:
    """End a session of six messages; return its ULID."""
    await workspace.said(ADA, talk(6))
    session_id = (await workspace.store.look(ADA)).session_id
    assert await workspace.new(ADA)
    return session_id


async def end_again(workspace: Workspace, session_id: str) -> None:
    """Open a session again, and end it with four messages more."""
    await reopen(workspace.store, session_id, ADA)
    await workspace.said(ADA, talk(4, start=6))
    assert await workspace.new(ADA)


async def all_is_in_memory(folder: Path) -> None:
    """Let a later process do what its files say, and see that nothing of the session is left."""
    async with open_workspace(folder, run=True) as workspace:
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()
        asked = [workspace.model.text(call) for call in range(len(workspace.model.seen))]
    assert sum("message 9" in text for text in asked) == 1
    (archived,) = (folder / "sessions/archive/telegram_1").glob("*.jsonl")
    assert json.loads(archived.read_text().split("\n")[0])["last_consolidated"] == 10
    assert jobs_in(folder) == []


async def test_a_session_that_ends_again_while_its_job_runs_waits_over_a_restart(tmp_path: Path) -> None:
    """The second try meets an outage, and the process ends before the model is back."""
    go = asyncio.Event()

    async def slow(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    async with open_workspace(tmp_path, slow, AWAY, run=True) as workspace:
        session_id = await end(workspace)
        await workspace.model.asked(1)
        await end_again(workspace, session_id)
        go.set()
        await workspace.model.asked(2)
        await workspace.jobs.settled()

        assert workspace.jobs.shown()["reasons"] == ["away"]
        assert len(jobs_in(tmp_path)) == 1
    await all_is_in_memory(tmp_path)


async def test_a_session_that_ends_between_the_look_of_its_job_and_its_end_waits(tmp_path: Path) -> None:
    """The job finds it active and has nothing to do: the file that is written then is of the next one."""
    looked, ended = threading.Event(), threading.Event()

    class Late(JobFiles):
        def strike(self, job: BackgroundJob, **more: Any) -> None:
            if job.kind == "consolidate" and not looked.is_set():
                looked.set()
                ended.wait(30)
            super().strike(job, **more)

    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace)
        await reopen(workspace.store, session_id, ADA)
    async with open_workspace(tmp_path, AWAY, run=True, files=Late(tmp_path / "state")) as workspace:
        assert await asyncio.to_thread(looked.wait, 30)
        await workspace.said(ADA, talk(4, start=6))
        assert await workspace.new(ADA)
        ended.set()
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert len(jobs_in(tmp_path)) == 1
    await all_is_in_memory(tmp_path)


async def test_a_session_that_ends_again_while_a_person_waits_for_memory_keeps_its_job(
    tmp_path: Path,
) -> None:
    """What is asked for at once was read before: it ends no job that came behind."""
    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace)

        async def meanwhile(prompt: Prompt) -> Answer:
            await end_again(workspace, session_id)
            return saved()

        workspace.model.steps.append(meanwhile)
        report = await workspace.jobs.at_once(ADA)

        assert (report.messages, len(jobs_in(tmp_path))) == (6, 1)
        assert (await workspace.jobs.at_once(ADA)).messages == 4
        assert jobs_in(tmp_path) == []
