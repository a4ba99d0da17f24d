"""Wherever a process dies while memory changes, no text of it is lost, none is kept twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.dying import victims
from tests.session.memory.test_facts import drawn
from tests.session.memory_place import ADA, open_workspace, talk
from tests.session.versions_victim import TASKS
from tests.support.guarantee import guarantee

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
