"""A line or a number that is larger than a tool takes is cut, with words, and ends nothing."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from session.errors import ToolError
from session.tools import MAX_RESULT_BYTES, ToolPlace
from session.tools.files import Read, Write
from session.tools.sandbox.sandbox import SandboxOfDaemon
from session.tools.shell import Shell


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    (tmp_path / "files/chats/x").mkdir(parents=True)
    return ToolPlace(folder=tmp_path / "files/chats/x", key="cli:x")


async def test_behind_a_line_that_is_too_long_reading_goes_on(place: ToolPlace) -> None:
    (place.folder / "a").write_text("я" * 40_000 + "\ntwo\nthree\n" + "x" * 70_000)

    first, *notes = (await Read().run({"path": "a"}, place)).split("\n")
    last = await Read().run({"path": "a", "offset": 4}, place)

    assert len(first) > 32_000
    assert set(first) == {"я"}
    assert notes == [
        "[line 1 does not fit into the 64 kB of a result; this is its beginning]",
        "[3 more lines; continue with offset=2]",
    ]
    assert await Read().run({"path": "a", "offset": 2, "limit": 2}, place) == (
        "two\nthree\n[1 more lines; continue with offset=4]"
    )
    assert last.endswith("x\n[line 4 does not fit into the 64 kB of a result; this is its beginning]")
    assert len(last.encode()) <= MAX_RESULT_BYTES


@pytest.mark.ordinary_user
async def test_a_command_may_be_given_any_number_of_seconds(place: ToolPlace) -> None:
    """More than a float holds is as long as any command may take."""
    shell = Shell(SandboxOfDaemon(), network=False, timeout_s=60.0, private=())

    said = await shell.run({"command": "echo hello", "timeout_s": 10**400}, place)

    assert said == "exit code: 0\nstdout:\nhello\n"


async def test_a_file_of_short_lines_is_read_from_any_of_them(place: ToolPlace) -> None:
    """Only what is shown becomes text: all lines of 10 MB would take 30 times that."""
    lines = 5_000_000
    (place.folder / "a").write_bytes(b"x\n" * (lines - 1) + b"\xff")
    (place.folder / "b").write_bytes(b"\n" * 70_000)
    tracemalloc.start()
    try:
        last = await Read().run({"path": "a", "offset": lines - 1}, place)
        middle = await Read().run({"path": "a", "offset": 2_500_000, "limit": 2}, place)
        beyond = Read().run({"path": "a", "offset": lines + 1}, place)
        with pytest.raises(ToolError, match=f"the file has {lines} lines"):
            await beyond
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert last == "x\n\ufffd"
    assert middle == f"x\nx\n[{lines - 2_500_001} more lines; continue with offset=2500002]"
    assert (await Read().run({"path": "b", "offset": 69_999}, place)) == "\n"
    assert peak < 40 * 2**20


async def test_a_file_is_written_in_32_folders_and_not_deeper(place: ToolPlace) -> None:
    await Write().run({"path": "d/" * 32 + "x", "content": "x"}, place)
    with pytest.raises(ToolError, match="over 32 folders deep"):
        await Write().run({"path": "d/" * 33 + "x", "content": "x"}, place)

    assert not (place.folder / ("d/" * 33)).exists()
