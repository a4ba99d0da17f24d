"""Wherever a process dies while memory changes nothing is lost, and nothing is there twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from session.memory.fact_extraction import FactRules
from session.memory.fact_store import active
from tests.session.dying import victim, victims
from tests.session.facts_victim import Counting, main
from tests.session.memory.test_extraction import MILAN, exchange
from tests.session.memory.test_facts import drawn
from tests.session.memory_place import ADA, noted, open_workspace, talk, timers_in
from tests.session.versions_victim import TASKS
from tests.support.guarantee import guarantee
from tests.support.until import until


@guarantee("once", "Facts are extracted once from each part of a conversation, across kills and processes.")
@pytest.mark.parametrize(("point", "asked"), [("ask.after", 2), ("facts.after", 1), ("strike.before", 1)])
async def test_killed_at_any_step_it_loses_and_repeats_nothing(
    tmp_path: Path, point: str, asked: int
) -> None:
    """Asked again the model would use other words; it is asked again only if nothing was stored."""
    async with open_workspace(tmp_path, facts=FactRules()) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.jobs.aclose()

    assert await victim("facts_victim", tmp_path, point) == -signal.SIGKILL
    await main(tmp_path, "none")

    async with open_workspace(tmp_path) as house:
        assert len(active(await house.known.facts(await house.scope(ADA)))) == 1
    assert (Counting.workspace / "calls").read_text().split() == ["call"] * asked
    assert timers_in(tmp_path) == []


@guarantee("once", "Facts are extracted once from each part of a conversation, across kills and processes.")
@guarantee(
    "sessions", "A kill before the extraction timer is stored does not lose the facts of a conversation."
)
@pytest.mark.parametrize("ended", [False, True])
async def test_killed_before_its_timer_is_written_a_stretch_is_not_lost(tmp_path: Path, ended: bool) -> None:
    """The next process finds it, also where its first message is the ``/new`` that ends the session."""
    assert await victim("facts_victim", tmp_path, "timer.before") == -signal.SIGKILL
    assert timers_in(tmp_path) == []

    async with open_workspace(tmp_path, facts=FactRules()) as house:
        if ended:
            await house.new(ADA)
            await house.jobs.aclose()
    clock = house.clock
    clock.advance(minutes=30)
    async with open_workspace(tmp_path, run=True, clock=clock, facts=FactRules(), window=99) as house:
        house.model.drew = [noted(MILAN)]
        await until(lambda: (tmp_path / "memory/chats/telegram_1/facts.jsonl").exists())
        await until(lambda: timers_in(tmp_path) == [])
        facts = active(await house.known.facts(await house.scope(ADA)))
    async with open_workspace(tmp_path, run=True, clock=clock, facts=FactRules(), window=99) as again:
        await again.jobs.looked.wait()
        await again.jobs.settled()

        # What was looked at is not looked at again.
        assert again.jobs.shown()["facts_waiting"] == 0
        assert again.model.extractions == []
    assert [each.text for each in facts] == ["Ada lives in Milan."]
    assert len(house.model.extractions) == 1


MEMORY = Path("memory/chats/telegram_1")


async def begun(folder: Path) -> None:
    """A MEMORY.md that was written twice and then edited, and a fact that replaced another."""
    async with open_workspace(folder) as house:
        await house.said(ADA, talk(2))
        scope = await house.scope(ADA)
        notes = house.memory.notes(scope)
        for text in ("one\n", "two\n"):
            notes.write_memory(text)
        notes.memory_path.write_text("by hand\n")
        house.known.file(scope).add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada has a dog.")])
        house.known.file(scope).add([drawn("C", "Ada lives in Milan.", replaces="A")])


def copies(folder: Path, count: int) -> Iterator[Path]:
    for number in range(1, count + 1):
        yield folder.with_name(f"{folder.name}-{number}")


def texts(folder: Path) -> list[str]:
    """All texts of MEMORY.md: the versions, then what stands there."""
    versions = (folder / MEMORY / "versions").glob("*-MEMORY.md")
    return [*sorted(path.read_text() for path in versions), (folder / MEMORY / "MEMORY.md").read_text()]


@guarantee("sessions", "Earlier versions of a chat's memory are kept and can be restored, across kills.")
@pytest.mark.parametrize(
    ("task", "former", "now"),
    [
        ("write", ["by hand\n", "one\n", "two\n"], "three\n"),
        ("restore", ["by hand\n", "one\n", "two\n"], "one\n"),
    ],
)
async def test_no_text_is_lost_and_none_is_kept_twice(
    tmp_path: Path, task: str, former: list[str], now: str
) -> None:
    folder = tmp_path / "house"
    await begun(folder)

    count = victims("versions_victim", folder, task)

    assert count > 6
    for copy in copies(folder, count):
        *kept, standing = texts(copy)
        written = (copy / MEMORY / "versions/written/MEMORY.md").read_text()
        assert {*kept, standing, written} >= {"by hand\n", "one\n", "two\n"}
        assert standing in ("by hand\n", now)
        await TASKS[task](copy)
        assert texts(copy) == [*former, now]


@guarantee("privacy", "A forgotten fact stays in no version of the facts, wherever the gateway is killed.")
async def test_what_is_forgotten_stays_nowhere(tmp_path: Path) -> None:
    """After the second try at the latest; until then the fact is there to be forgotten again."""
    folder = tmp_path / "house"
    await begun(folder)

    count = victims("versions_victim", folder, "forget")

    assert count > 4
    for copy in copies(folder, count):
        await TASKS["forget"](copy)
        there = b"".join(path.read_bytes() for path in (copy / MEMORY).rglob("*") if path.is_file())
        assert b"Milan" not in there
        assert b"Rome" not in there
        assert b"Ada has a dog." in there
