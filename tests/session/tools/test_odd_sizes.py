"""A line or a number that is larger than a tool takes is cut, with words, and ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.tools import MAX_RESULT_BYTES, ToolPlace
from session.tools.files import Read


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    (tmp_path / "files").mkdir()
    return ToolPlace(folder=tmp_path / "files", key="cli:x")


async def test_behind_a_line_that_is_too_long_reading_goes_on(place: ToolPlace) -> None:
    (place.folder / "a").write_text("я" * 40_000 + "\ntwo\nthree\n" + "x" * 70_000)

    first, *notes = (await Read().run({"path": "a"}, place)).split("\n")
    last = await Read().run({"path": "a", "offset": 4}, place)

    assert len(first) > 32_000
    assert set(first) == {"я"}
    assert notes == [
        "[line 1 does not fit into the 64 kB of a result; this is its beginning]",
        "[3 more lines; go on with offset=2]",
    ]
    assert await Read().run({"path": "a", "offset": 2, "limit": 2}, place) == (
        "two\nthree\n[1 more lines; go on with offset=4]"
    )
    assert last.endswith("x\n[line 4 does not fit into the 64 kB of a result; this is its beginning]")
    assert len(last.encode()) <= MAX_RESULT_BYTES
