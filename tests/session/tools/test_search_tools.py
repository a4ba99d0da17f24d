"""``edit``, ``grep`` and ``skill_read``: what they change, find and show; they cannot leave or hang."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from session.library.library import Library
from session.models.model import ToolCall
from session.tools import Toolbox, ToolPlace, ToolResult
from session.tools.beneath import change_file
from session.tools.files import Edit
from session.tools.grep import MAX_LINES, Grep
from session.tools.skills import SkillRead
from tests.support.guarantee import guarantee


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    folder = tmp_path / "files"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "a.txt").write_text("one\nTwo\nthree\n")
    (folder / "b.txt").write_text("two and two\n")
    (tmp_path / "secret.txt").write_text("two secrets\n")
    return ToolPlace(folder=folder, key="cli:x")


async def run(place: ToolPlace, tool: str, /, **arguments: Any) -> ToolResult:
    library = Library(place.folder.parent)
    box = Toolbox([Edit(), Grep(limit_s=60), SkillRead(library)])
    return await box.run(ToolCall("c", tool, json.dumps(arguments)), place, ("edit", "grep", "skill_read"))


async def done(place: ToolPlace, tool: str, /, **arguments: Any) -> str:
    result = await run(place, tool, **arguments)
    assert not result.is_error, result.text
    return result.text


async def refused(place: ToolPlace, tool: str, /, **arguments: Any) -> str:
    result = await run(place, tool, **arguments)
    assert result.is_error, result.text
    return result.text


# -- edit ------------------------------------------------------------------------------------------------


async def test_edit_replaces_one_passage(place: ToolPlace) -> None:
    """The passage is replaced, all else keeps its bytes."""
    said = await done(place, "edit", path="notes/a.txt", old="Two\n", new="2\n2\n")

    assert said == "replaced 1 passage in notes/a.txt"
    assert (place.folder / "notes" / "a.txt").read_text() == "one\n2\n2\nthree\n"


@pytest.mark.parametrize(
    ("old", "said"),
    [("four", "was not found"), ("two", "2 times"), ("", "empty"), ("x", "same as new")],
)
async def test_edit_refuses_what_is_not_clear(place: ToolPlace, old: str, said: str) -> None:
    """A passage that is not there, or more than once, changes nothing."""
    assert said in await refused(place, "edit", path="b.txt", old=old, new="x")
    assert (place.folder / "b.txt").read_text() == "two and two\n"


async def test_edit_replaces_all_when_asked(place: ToolPlace) -> None:
    assert (
        await done(place, "edit", path="b.txt", old="two", new="2", all=True)
        == "replaced 2 passages in b.txt"
    )
    assert (place.folder / "b.txt").read_text() == "2 and 2\n"


async def test_edit_keeps_the_ends_of_lines_and_odd_bytes(place: ToolPlace) -> None:
    """CR LF stays CR LF though the model writes LF; bytes that are no UTF-8 stay."""
    path = place.folder / "w.txt"
    path.write_bytes(b"\xff1\r\n2\r\n3\r\n")

    await done(place, "edit", path="w.txt", old="2\n3", new="two\nthree")

    assert path.read_bytes() == b"\xff1\r\ntwo\r\nthree\r\n"


@pytest.mark.parametrize("path", ["../secret.txt", "link.txt", "notes", "none.txt"])
async def test_edit_stays_below_its_folder(place: ToolPlace, path: str) -> None:
    (place.folder / "link.txt").symlink_to("../secret.txt")

    await refused(place, "edit", path=path, old="two", new="!")

    assert (place.folder.parent / "secret.txt").read_text() == "two secrets\n"


async def test_edits_at_once_lose_nothing(place: ToolPlace) -> None:
    """Twenty changes of one file by twenty threads all stand in it."""

    def add(number: int) -> None:
        change_file(place.folder, "b.txt", lambda data: data + b"%d\n" % number)

    await asyncio.gather(*(asyncio.to_thread(add, number) for number in range(20)))

    lines = (place.folder / "b.txt").read_text().split()
    assert sorted(map(int, lines[3:])) == list(range(20))


# -- grep ------------------------------------------------------------------------------------------------


async def test_grep_names_path_number_and_line(place: ToolPlace) -> None:
    assert await done(place, "grep", pattern="two") == "b.txt:1: two and two"
    assert await done(place, "grep", pattern="t[wh]", ignore_case=True) == (
        "b.txt:1: two and two\nnotes/a.txt:2: Two\nnotes/a.txt:3: three"
    )
    assert await done(place, "grep", pattern="^o", path="notes") == "notes/a.txt:1: one"
    assert await done(place, "grep", pattern="^o", path="notes/a.txt") == "notes/a.txt:1: one"
    assert await done(place, "grep", pattern="nowhere") == "(no line)"


@guarantee("failures", "A regular expression that never ends holds up neither its turn nor the gateway.")
@pytest.mark.slow
async def test_grep_stops_a_pattern_that_runs_for_ever(place: ToolPlace) -> None:
    """It is stopped, and the event loop stays free meanwhile."""
    (place.folder / "evil.txt").write_text("a" * 5000 + "!\n")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    ticking = asyncio.create_task(tick())
    arguments = json.dumps({"pattern": "(a|aa)+$", "path": "evil.txt"})
    said = await Toolbox([Grep(limit_s=1)]).run(ToolCall("c", "grep", arguments), place, ("grep",))
    ticking.cancel()

    assert said.is_error
    assert "over 1 s and was stopped" in said.text
    assert ticks > 10


async def test_grep_stays_below_its_folder(place: ToolPlace) -> None:
    """Neither links nor paths lead out."""
    (place.folder / "link.txt").symlink_to("../secret.txt")
    (place.folder / "out").symlink_to("..")

    assert "secret" not in await done(place, "grep", pattern="secret")
    for path in ("../secret.txt", "link.txt", "out", "out/secret.txt", "/etc/hosts"):
        assert "secrets" not in await refused(place, "grep", pattern="secret", path=path)


async def test_grep_is_bounded_and_skips_what_is_no_text(place: ToolPlace) -> None:
    (place.folder / "many.txt").write_text("hit\n" * 1000 + "h" * 1000)
    (place.folder / "binary").write_bytes(b"hit\0hit")

    rows = (await done(place, "grep", pattern="^h")).split("\n")

    assert len(rows) == MAX_LINES + 1
    assert rows[-1].startswith("[more lines than")
    assert len(await done(place, "grep", pattern="^hh")) < 400


async def test_grep_says_what_is_wrong_with_a_pattern(place: ToolPlace) -> None:
    assert "not a valid regular expression" in await refused(place, "grep", pattern="(")
    assert "not a valid regular expression: it has over" in await refused(place, "grep", pattern="x" * 5000)
    assert "no such file" in await refused(place, "grep", pattern="x", path="none")
