"""A session gets its name after its first exchange: once, checked, and within the budget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
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
from session.store.session import SessionJob
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from tests.session.memory_place import ADA, BOB, place
from tests.session.title_place import BAD, NAMING, TALKED, ended, exchange, name_of


async def test_the_first_exchange_gives_the_name(tmp_path: Path) -> None:
    """Once, into line 1; later turns ask for none."""
    async with place(tmp_path, run=True) as house:
        house.model.wrote = [Answer('"Trains to Lisbon."\n')]
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.jobs.settled()
        await house.turn(ADA, exchange("Thanks", "Welcome", "b"))
        await house.jobs.settled()

        assert await name_of(house) == "Trains to Lisbon"
        (asked,) = house.model.prose
        assert "Which train to Lisbon?" in asked.messages[-1]["content"]
        assert "The 9:15." in asked.messages[-1]["content"]
        (row,) = await house.store.rows()
        assert row.as_dict()["name"] == "Trains to Lisbon"


async def test_a_name_that_a_person_gave_stays(tmp_path: Path) -> None:
    """Given before, or while the model was thinking."""
    async with place(tmp_path, run=True) as house:
        async with house.store.open(ADA) as session:
            await session.checkpoint(metadata={"name": "Mine"})
        await house.turn(ADA, exchange("a", "b", "m"))
        await house.jobs.settled()
        assert house.model.prose == []

        async def meanwhile(_: Prompt) -> Answer:
            async with house.store.open(BOB) as session:
                await session.checkpoint(metadata={"name": "Bob's"})
            return Answer("The model's")

        house.model.wrote = [meanwhile]
        await house.turn(BOB, exchange("a", "b", "m"))
        await house.jobs.settled()

        assert (await name_of(house), await name_of(house, BOB)) == ("Mine", "Bob's")


async def test_a_session_that_ended_meanwhile_is_named_where_it_lies(tmp_path: Path) -> None:
    """And the one that began in its place is not."""
    async with place(tmp_path, run=True) as house:

        async def meanwhile(_: Prompt) -> Answer:
            async with house.store.open(ADA) as session:
                await session.end()
            return Answer("Old one")

        house.model.wrote = [meanwhile]
        await house.turn(ADA, exchange("a", "b", "m"))
        await house.jobs.settled()

        assert [one["name"] for one in ended(tmp_path)] == ["Old one"]
        assert await name_of(house) is None


class EndsFirst(Store):
    """A store in which the first change of an open session finds that it has just ended."""

    @asynccontextmanager
    async def open(self, key: SessionKey) -> AsyncIterator[Session]:
        async with super().open(key) as session:
            change = session.change

            async def behind_an_ending(job: SessionJob[Any]) -> Any:
                session.change = change  # type: ignore[method-assign]
                await session.end()
                return await change(job)

            session.change = behind_an_ending  # type: ignore[method-assign]
            yield session


async def test_a_session_that_ends_before_its_name_is_written_is_named_where_it_lies(tmp_path: Path) -> None:
    """It was the active one at the last look, and its ending came first to the files."""
    async with place(tmp_path) as house:
        await house.said(ADA, exchange("a", "b", "m"))
        session_id = (await house.store.look(ADA)).session_id
        house.model.wrote = [Answer("Old one")]
        store = EndsFirst(tmp_path, zone=UTC, clock=house.clock)
        await SessionTitles(house.memory, store).name(ADA, session_id)
        await store.aclose()

        assert [old.get("name") for old in ended(tmp_path)] == ["Old one"]
        assert await name_of(house) is None


async def test_a_session_that_ends_with_its_first_exchange_is_named(tmp_path: Path) -> None:
    """It ended before anybody came to ask for its name; a kill behind that costs no name."""
    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.new(ADA)

    async with place(tmp_path, run=True) as house:
        house.model.wrote = [
            lambda prompt: Answer("Trains" if prompt.messages[0]["content"] == NAMING else TALKED)
        ] * 2
        await house.jobs.looked.wait()
        await house.jobs.settled()

        assert [(one["name"], one["summary"]) for one in ended(tmp_path)] == [("Trains", TALKED)]
        assert await name_of(house) is None
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_process_that_ends_with_its_first_exchange_leaves_the_name_to_the_next(
    tmp_path: Path,
) -> None:
    """As one does that sends a single message; the session is still the active one."""
    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        await house.jobs.aclose()

    async with place(tmp_path, run=True) as house:
        house.model.wrote = [Answer("Trains")]
        await house.jobs.looked.wait()
        await house.jobs.settled()

        assert await name_of(house) == "Trains"
        assert list((tmp_path / "state/jobs").glob("*.json")) == []


async def test_a_job_that_ends_while_a_process_leaves_its_jobs_behind_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes itself out of the list while the others are written down in a thread."""
    writing, written, asked = threading.Event(), threading.Event(), asyncio.Event()
    keep = JobFiles.keep

    def held(files: JobFiles, job: BackgroundJob) -> None:
        writing.set()
        assert written.wait(20)
        keep(files, job)

    async def named(_: Prompt) -> Answer:
        await asked.wait()
        return Answer("Trains")

    async with place(tmp_path, run=True) as house, asyncio.timeout(30):
        house.model.wrote = [named, named]
        for key in (ADA, BOB):
            await house.turn(key, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        monkeypatch.setattr(JobFiles, "keep", held)
        closing = asyncio.create_task(house.jobs.aclose())
        assert await asyncio.to_thread(writing.wait, 20)
        asked.set()
        await house.jobs.settled()
        written.set()
        await closing

        assert [await name_of(house, key) for key in (ADA, BOB)] == ["Trains", "Trains"]


@pytest.mark.parametrize("answer", [*BAD, Answer("y" * 241), Answer("'*'")])
async def test_a_failure_is_not_retried_for_ever(tmp_path: Path, answer: Any) -> None:
    """Three tries in all, over turns and restarts."""
    clock = None
    for start in range(2):
        async with place(tmp_path, run=True, clock=clock) as house:
            clock = house.clock
            house.model.wrote = [answer] * 9
            for number in range(4):
                await house.turn(ADA, exchange("a", "b", f"{start}-{number}"))
                await house.jobs.settled()
                clock.advance(600)
                await house.jobs.settled()
            assert len(house.model.prose) == (3 if start == 0 else 0)
            assert await name_of(house) is None


def test_a_name_is_one_line_of_at_most_60_characters() -> None:
    long = title_prompt.read_name(
        Answer("A very long name that goes on about many things, and does not stop there")
    )

    assert long == "A very long name that goes on about many things, and does…"
    assert title_prompt.read_name(Answer("\n**Trains**\nand more")) == "Trains"
    assert len(title_prompt.read_name(Answer("z" * 200))) == 60
    with pytest.raises(BadAnswer):
        title_prompt.read_name(Answer('""'))
