"""A session gets its name after its first exchange: once, checked, and within the budget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from session.errors import BadAnswer
from session.memory import title_prompt
from session.memory.titles import SessionTitles
from session.models.model import Answer, Prompt
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


async def test_a_session_that_ends_before_its_name_is_written_is_named_where_it_lies(tmp_path: Path) -> None:
    """It was the active one at the last look, and its ending came first to the files."""
    async with place(tmp_path) as house:
        await house.said(ADA, exchange("a", "b", "m"))
        house.model.wrote = [Answer("Old one")]
        async with house.store.open(ADA) as session:
            handle = house.store._handles.get(ADA)
            assert handle is not None

            async def waiting(count: int) -> None:
                while len(handle.turn._waiters or ()) < count:
                    await asyncio.sleep(0)

            await handle.turn.acquire()
            chronicle = SessionTitles(house.memory, house.store)
            naming = asyncio.ensure_future(chronicle.name(ADA, session.session_id))
            await waiting(1)
            ending = asyncio.ensure_future(session.end())
            await waiting(2)
            handle.turn.release()
            await asyncio.gather(ending, naming)

        assert [one.get("name") for one in ended(tmp_path)] == ["Old one"]
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


async def test_a_process_that_ends_looks_at_its_jobs_only_where_they_change(tmp_path: Path) -> None:
    """A job that ends while the others are written down takes itself out of the list."""

    class OfTheLoop(dict[Any, Any]):
        def __iter__(self) -> Any:
            asyncio.get_running_loop()
            return super().__iter__()

    async with place(tmp_path) as house:
        await house.turn(ADA, exchange("Which train to Lisbon?", "The 9:15.", "a"))
        house.jobs._due = OfTheLoop(house.jobs._due)
        await house.jobs.aclose()

        assert len(list((tmp_path / "state/jobs").glob("*.json"))) == 1


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
