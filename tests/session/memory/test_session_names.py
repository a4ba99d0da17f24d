"""A session gets its name after its first exchange: once, checked, and within the budget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.background.job_files import BackgroundJob, JobFiles
from session.errors import BadAnswer
from session.memory import title_prompt
from session.memory.titles import SessionTitles
from session.models.model import Answer, Prompt
from session.store import ending
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from tests.session.memory_place import ADA, BOB, open_workspace
from tests.session.title_place import BAD, NAMING, TALKED, ended, exchange, name_of


async def test_the_first_exchange_gives_the_name(tmp_path: Path) -> None:
    """Once, into line 1; later turns ask for none."""
    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [Answer('"Trains to Lisbon."\n')]
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await workspace.jobs.settled()
        await workspace.turn(ADA, exchange("Thanks", "Welcome", "b"))
        await workspace.jobs.settled()

        assert await name_of(workspace) == "Trains to Lisbon"
        (asked,) = workspace.model.prose
        assert "Which train to Lisbon?" in asked.messages[-1]["content"]
        assert "The 9:15." in asked.messages[-1]["content"]
        (row,) = await workspace.store.rows()
        assert row.as_dict()["name"] == "Trains to Lisbon"


async def test_a_name_that_a_person_gave_stays(tmp_path: Path) -> None:
    """Given before, or while the model was thinking."""
    async with open_workspace(tmp_path, run=True) as workspace:
        async with workspace.store.open(ADA) as session:
            await session.checkpoint(metadata={"name": "Mine"})
        await workspace.turn(ADA, exchange("a", "b", "m"))
        await workspace.jobs.settled()
        assert workspace.model.prose == []

        async def meanwhile(_: Prompt) -> Answer:
            async with workspace.store.open(BOB) as session:
                await session.checkpoint(metadata={"name": "Bob's"})
            return Answer("The model's")

        workspace.model.wrote = [meanwhile]
        await workspace.turn(BOB, exchange("a", "b", "m"))
        await workspace.jobs.settled()

        assert (await name_of(workspace), await name_of(workspace, BOB)) == ("Mine", "Bob's")


async def test_a_session_that_ended_meanwhile_is_named_where_it_lies(tmp_path: Path) -> None:
    """And the one that began in its place is not."""
    async with open_workspace(tmp_path, run=True) as workspace:

        async def meanwhile(_: Prompt) -> Answer:
            async with workspace.store.open(ADA) as session:
                await session.end()
            return Answer("Old one")

        workspace.model.wrote = [meanwhile]
        await workspace.turn(ADA, exchange("a", "b", "m"))
        await workspace.jobs.settled()

        assert [one["name"] for one in ended(tmp_path)] == ["Old one"]
        assert await name_of(workspace) is None


class EndsFirst(Store):
    """A store in which an ending of each session that is opened comes first to its files."""

    @asynccontextmanager
    async def open(self, key: SessionKey) -> AsyncIterator[Session]:
        go = threading.Event()

        def end(*writers: Any) -> object:
            assert go.wait(20)
            return ending.end(*writers, metadata=None)

        async with super().open(key) as session:
            ending_it = asyncio.ensure_future(session.change(end))
            # From here on it has its turn at the files; it goes on once the one who opened waits behind it.
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(go.set)
            yield session
            await ending_it


class HeldFiles(JobFiles):
    """Files of jobs that are written once a test lets them be."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.writing, self.let = threading.Event(), threading.Event()

    def keep(self, job: BackgroundJob) -> None:
        self.writing.set()
        assert self.let.wait(20)
        super().keep(job)


class Struck(JobFiles):
    """Files of jobs of which one that is done is gone before a test lets its job go on."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.struck, self.let = threading.Event(), threading.Event()

    def strike(self, job: BackgroundJob, *, unless: Callable[[], bool] = lambda: False) -> None:
        super().strike(job, unless=unless)
        self.struck.set()
        assert self.let.wait(20)


async def test_a_session_that_ends_before_its_name_is_written_is_named_where_it_lies(tmp_path: Path) -> None:
    """It was the active one at the last look, and its ending came first to the files."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, exchange("a", "b", "m"))
        session_id = (await workspace.store.look(ADA)).session_id
        workspace.model.wrote = [Answer("Old one")]
        store = EndsFirst(tmp_path, zone=UTC, clock=workspace.clock)
        await SessionTitles(workspace.memory, store).name(ADA, session_id)
        await store.aclose()

        assert [old.get("name") for old in ended(tmp_path)] == ["Old one"]
        assert await name_of(workspace) is None


async def test_a_session_that_ends_with_its_first_exchange_is_named(tmp_path: Path) -> None:
    """It ended before anybody came to ask for its name; a kill behind that costs no name."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await workspace.new(ADA)

    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [
            lambda prompt: Answer("Trains" if prompt.messages[0]["content"] == NAMING else TALKED)
        ] * 2
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()

        assert [(one["name"], one["summary"]) for one in ended(tmp_path)] == [("Trains", TALKED)]
        assert await name_of(workspace) is None
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_process_that_ends_with_its_first_exchange_leaves_the_name_to_the_next(
    tmp_path: Path,
) -> None:
    """As one does that sends a single message; the session is still the active one."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await workspace.jobs.aclose()

    async with open_workspace(tmp_path, run=True) as workspace:
        workspace.model.wrote = [Answer("Trains")]
        await workspace.jobs.looked.wait()
        await workspace.jobs.settled()

        assert await name_of(workspace) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_job_that_ends_while_a_process_leaves_its_jobs_behind_is_in_nobodys_way(
    tmp_path: Path,
) -> None:
    """It takes itself out of the list while the others are written down in a thread."""
    files, asked = HeldFiles(tmp_path / "state"), asyncio.Event()

    async def named(_: Prompt) -> Answer:
        await asked.wait()
        return Answer("Trains")

    async with open_workspace(tmp_path, run=True, files=files) as workspace, asyncio.timeout(30):
        workspace.model.wrote = [named, named]
        for key in (ADA, BOB):
            await workspace.turn(key, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        closing = asyncio.create_task(workspace.jobs.aclose())
        assert await asyncio.to_thread(files.writing.wait, 20)
        asked.set()
        await workspace.jobs.settled()
        files.let.set()
        await closing

        assert [await name_of(workspace, key) for key in (ADA, BOB)] == ["Trains", "Trains"]


async def test_a_process_that_ends_as_a_name_was_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """The file of the job is gone, and the job itself was cut off before it could say that it was done."""
    files = Struck(tmp_path / "state")
    async with open_workspace(tmp_path, files=files) as workspace, asyncio.timeout(30):
        workspace.model.wrote = [Answer("Trains")]
        await workspace.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        running = asyncio.create_task(workspace.jobs.run())
        assert await asyncio.to_thread(files.struck.wait, 20)
        running.cancel()
        files.let.set()
        await asyncio.wait((running,))
        await workspace.jobs.aclose()

        assert await name_of(workspace) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


@pytest.mark.parametrize("answer", [*BAD, Answer("y" * 241), Answer("'*'")])
async def test_a_failure_is_not_retried_for_ever(tmp_path: Path, answer: Any) -> None:
    """Two tries in all, over turns and restarts; the second has more room."""
    clock = None
    for start in range(2):
        async with open_workspace(tmp_path, run=True, clock=clock) as workspace:
            clock = workspace.clock
            workspace.model.wrote = [answer] * 9
            for number in range(4):
                await workspace.turn(ADA, exchange("a", "b", f"{start}-{number}"))
                await workspace.jobs.settled()
                clock.advance(600)
                await workspace.jobs.settled()
            rooms = [prompt.max_tokens for prompt in workspace.model.prose]
            assert rooms == ([200, 800] if start == 0 else [])
            assert await name_of(workspace) is None


def test_a_name_is_one_line_of_at_most_60_characters() -> None:
    long = title_prompt.read_name(
        Answer("A very long name that goes on about many things, and does not stop there")
    )

    assert long == "A very long name that goes on about many things, and does…"
    assert title_prompt.read_name(Answer("\n**Trains**\nand more")) == "Trains"
    assert len(title_prompt.read_name(Answer("z" * 200))) == 60
    with pytest.raises(BadAnswer):
        title_prompt.read_name(Answer('""'))
