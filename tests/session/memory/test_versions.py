"""Former texts of memory: kept before they go, each once, in order, until they are too many or too old."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from session.memory.memory_commands import MemoryHistory, changed
from session.memory.notes import Notes, VersionRules
from tests.session.memory.test_facts import drawn
from tests.session.memory_place import ADA, BOB, Clock, Workspace, open_workspace, saved, talk

UNKNOWN = "01KG9NB3H0Q5W4XZ2WM29XRYBN"


def notes_in(folder: Path, clock: Clock, **rules: float) -> Notes:
    return Notes(folder, VersionRules(**rules), clock=clock)  # type: ignore[arg-type]


def texts(notes: Notes, file: str = "MEMORY.md") -> list[tuple[str, str]]:
    """Cause and text of the versions, the oldest first."""
    return [(one.cause, one.read().decode()) for one in notes.versions.all(file)]


def former(house: Workspace) -> MemoryHistory:
    return MemoryHistory(house.memory, house.known)


def test_each_change_keeps_what_stood_there(tmp_path: Path) -> None:
    notes = notes_in(tmp_path, Clock())
    for text, cause in (("one\n", "consolidation"), ("two\n", "consolidation"), ("three\n", "merge")):
        notes.write_memory(text, cause)
    notes.replace_profile("old\n", was=b"")
    notes.replace_profile("new\n", was=b"old\n")

    assert texts(notes) == [("consolidation", "one\n"), ("merge", "two\n")]
    assert texts(notes, "USER.md") == [("profile", "old\n")]
    assert notes.memory() == b"three\n"


def test_an_edit_by_hand_is_kept_with_what_it_replaced(tmp_path: Path) -> None:
    """Its time is that of the edit; what stood there before by our own hand is not lost to it."""
    clock = Clock()
    notes = notes_in(tmp_path, clock)
    notes.write_memory("ours\n")
    notes.memory_path.write_text("by hand\n")
    at = clock() + timedelta(minutes=5)
    os.utime(notes.memory_path, (at.timestamp(), at.timestamp()))
    clock.advance(3600)

    notes.write_memory("ours again\n")

    assert texts(notes) == [("edited by hand", "ours\n"), ("consolidation", "by hand\n")]
    assert [one.at for one in notes.versions.all()] == [at, clock()]


def test_so_many_are_kept_of_each_file_and_for_so_long(tmp_path: Path) -> None:
    clock = Clock()
    notes = notes_in(tmp_path, clock, most=3, days=10)
    notes.replace_profile("a", was=b"")
    notes.replace_profile("b", was=b"a")
    for number in range(6):
        notes.write_memory(f"{number}")
        clock.advance(3 * 24 * 3600)

    assert [text for _, text in texts(notes)] == ["2", "3", "4"]
    assert texts(notes, "USER.md") == []
    clock.advance(5 * 24 * 3600)
    assert notes.versions.prune() == 2
    assert [text for _, text in texts(notes)] == ["4"]


def test_so_many_days_that_no_calendar_has_them_keep_all(tmp_path: Path) -> None:
    notes = notes_in(tmp_path, Clock(), days=999_999)
    for text in ("one\n", "two\n"):
        notes.write_memory(text)

    assert [text for _, text in texts(notes)] == ["one\n"]


@pytest.mark.parametrize("rules", [{"most": 0}, {"days": 0}])
def test_none_are_kept_where_none_shall_be(tmp_path: Path, rules: dict[str, float]) -> None:
    clock = Clock()
    notes_in(tmp_path, clock).write_memory("one\n")
    notes_in(tmp_path, clock).write_memory("two\n")

    notes_in(tmp_path, clock, **rules).write_memory("three\n")

    assert [path for path in (tmp_path / "versions").rglob("*") if path.is_file()] == []
    assert (tmp_path / "MEMORY.md").read_text() == "three\n"


def test_they_are_in_order_within_a_millisecond_and_over_a_clock_that_goes_back(tmp_path: Path) -> None:
    clock = Clock()
    notes = notes_in(tmp_path, clock)
    for number in range(20):
        notes.write_memory(f"{number}")
        clock.advance(-3600 if number == 10 else 0)

    assert [text for _, text in texts(notes)] == [f"{number}" for number in range(19)]


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    notes = notes_in(tmp_path, Clock(), most=1)
    (tmp_path / "versions").mkdir()
    strange = tmp_path / "versions/20269931T991500Z-01KG9NB3H0Q5W4XZ2WM29XRYBN-merge-MEMORY.md"
    for path in (strange, tmp_path / "versions/notes.txt"):
        path.write_text("mine")

    for number in range(4):
        notes.write_memory(f"{number}")

    assert strange.read_text() == "mine"
    assert [text for _, text in texts(notes)] == ["2"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a\nb\n", "a\nc\nd\n", "+2 -1 lines"),
        ("## Work\n- x\n", "- x\n", "+0 -1 lines; headings gone: Work"),
        ("- x\n- x\n", "- x\n", "+0 -1 lines"),
    ],
)
def test_a_change_is_told_in_short(before: str, after: str, said: str) -> None:
    assert changed(before, after) == said


async def test_a_chat_has_its_own_versions_alone(tmp_path: Path) -> None:
    """Neither listed nor restored by another one, not even by the version's id."""
    async with open_workspace(tmp_path, saved(memory="one"), saved(memory="two")) as house:
        for start in (0, 10):
            await house.said(ADA, talk(10, start=start))
            await house.memory.consolidate(ADA)
        await house.said(BOB, talk(2))
        (row,) = await former(house).history(ADA, await house.scope(ADA))

        there = sorted(tmp_path.rglob("*"))
        assert await former(house).history(BOB, await house.scope(BOB)) == []
        assert sorted(tmp_path.rglob("*")) == there
        assert await former(house).restore(BOB, await house.scope(BOB), row["version"]) is None
        assert await former(house).restore(ADA, await house.scope(ADA), UNKNOWN) is None
        assert await house.read("MEMORY.md") == "two\n"


async def test_what_was_cleared_has_no_versions_and_gets_none(tmp_path: Path) -> None:
    async with open_workspace(tmp_path, saved(memory="one"), saved(memory="two")) as house:
        for start in (0, 10):
            await house.said(ADA, talk(10, start=start))
            await house.memory.consolidate(ADA)
        scope = await house.scope(ADA)
        (row,) = await former(house).history(ADA, scope)

        await house.store.clear(ADA, everything=True)

        assert await former(house).restore(ADA, scope, row["version"]) is None
        assert not scope.memory.exists()


async def test_what_was_just_edited_by_hand_can_be_undone(house: Workspace) -> None:
    """Each edit that the history was asked about is one version, however often it is asked."""
    await house.said(ADA, talk(2))
    scope = await house.scope(ADA)
    notes = house.memory.notes(scope)
    notes.write_memory("ours\n")
    house.known.file(scope).add([drawn("A", "Ada has a dog.")])
    for text in ("by hand\n", "by hand again\n"):
        notes.memory_path.write_text(text)
        for _ in range(2):
            rows = await former(house).history(ADA, scope)
    (scope.memory / "facts.jsonl").write_text("")
    rows = await former(house).history(ADA, scope)
    rows = await former(house).history(ADA, scope)

    assert [(row["file"], row["cause"]) for row in rows] == [
        ("facts.jsonl", "edited by hand"),
        ("MEMORY.md", "edited by hand"),
        ("MEMORY.md", "edited by hand"),
    ]
    assert rows[0]["changed"] == "was: Ada has a dog."
    for row in rows:
        assert await former(house).restore(ADA, scope, row["version"]) is not None
    assert await house.read("MEMORY.md") == "ours\n"
    assert [one.text for one in await house.known.facts(scope)] == ["Ada has a dog."]
