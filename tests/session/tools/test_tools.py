"""Tools act below their folder and nowhere else, and whatever goes wrong is told to the model."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.models.model import ToolCall
from session.tools import MAX_RESULT_BYTES, Toolbox, ToolPlace, ToolResult
from session.tools.beneath import change_file
from session.tools.files import MAX_FILE_BYTES, Ls, Read, Write
from session.tools.grep import Grep
from tests.support.examples import drawn

ALL = ("read", "write", "ls", "odd")
BOX = Toolbox([Read(), Write(), Ls()])


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    return ToolPlace(folder=tmp_path / "ws" / "files", key="cli:x")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def run(place: ToolPlace, name: str, **arguments: Any) -> ToolResult:
    return await BOX.run(ToolCall("c", name, json.dumps(arguments)), place, ALL)


async def done(place: ToolPlace, name: str, **arguments: Any) -> str:
    result = await run(place, name, **arguments)
    assert not result.is_error, result.text
    return result.text


async def refused(place: ToolPlace, name: str, **arguments: Any) -> str:
    result = await run(place, name, **arguments)
    assert result.is_error, result.text
    return result.text


async def test_write_read_and_list(place: ToolPlace) -> None:
    """A written file can be read and is listed; folders are made on the way, closed to others."""
    assert await done(place, "write", path="notes/a.txt", content="zwölf\n") == "wrote 7 bytes to notes/a.txt"

    assert await done(place, "read", path="notes/a.txt") == "zwölf"
    assert await done(place, "read", path=str(place.folder / "notes" / "a.txt")) == "zwölf"
    assert await done(place, "ls") == "notes/"
    assert await done(place, "ls", path="notes/../notes") == "a.txt (7 bytes)"
    assert stat.S_IMODE((place.folder / "notes").stat().st_mode) == 0o700
    assert stat.S_IMODE((place.folder / "notes/a.txt").stat().st_mode) == 0o600


async def test_empty_scope_lists_as_empty(place: ToolPlace) -> None:
    """A folder that nobody has used yet is empty, not an error."""
    assert await done(place, "ls", path=".") == "(empty)"


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "/", "..", "a/../..", "x\0y", "~/../../x"],
)
async def test_paths_that_leave_are_refused(place: ToolPlace, path: str) -> None:
    """No path leads above the folder, for any of the tools."""
    (place.folder.parent).mkdir(parents=True)
    (place.folder.parent / "x").write_text("secret")

    for tool in ("read", "ls"):
        assert "secret" not in await refused(place, tool, path=path)
    await refused(place, "write", path=path, content="!")
    assert (place.folder.parent / "x").read_text() == "secret"


async def test_a_neighbour_with_the_same_beginning_is_outside(place: ToolPlace) -> None:
    """``/ws/files-of-others`` is not below ``/ws/files``."""
    other = place.folder.parent / "files-of-others"
    other.mkdir(parents=True)
    (other / "x").write_text("secret")

    assert "outside" in await refused(place, "read", path=str(other / "x"))


@pytest.mark.parametrize("path", ["link", "dir/link", "out/x", "inner/a"])
async def test_links_are_never_followed(place: ToolPlace, tmp_path: Path, path: str) -> None:
    """A link is refused as the last name and as a folder on the way, even one that stays inside."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x").write_text("secret")
    (place.folder / "dir").mkdir(parents=True)
    (place.folder / "dir" / "a").write_text("inside")
    (place.folder / "link").symlink_to(secret / "x")
    (place.folder / "dir" / "link").symlink_to(secret / "x")
    (place.folder / "out").symlink_to(secret)
    (place.folder / "inner").symlink_to("dir")

    assert "link" in await refused(place, "read", path=path)
    assert "link" in await refused(place, "write", path=path, content="!")
    assert (secret / "x").read_text() == "secret"
    assert (place.folder / "dir" / "a").read_text() == "inside"


async def test_a_folder_swapped_for_a_link_does_not_open_the_outside(
    place: ToolPlace, tmp_path: Path
) -> None:
    """While another process swaps a folder for a link and back, no call ever reads what is outside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret")
    (place.folder / "real").mkdir(parents=True)
    (place.folder / "real" / "x").write_text("mine")
    script = (
        "import os,sys\n"
        "os.chdir(sys.argv[1]); os.symlink(sys.argv[2], 'link'); print('go', flush=True)\n"
        "while True:\n"
        "    os.rename('real','hidden'); os.rename('link','real')\n"
        "    os.rename('real','link'); os.rename('hidden','real')\n"
    )
    swapper = subprocess.Popen(
        [sys.executable, "-c", script, str(place.folder), str(outside)], stdout=subprocess.PIPE
    )
    try:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        results, writes = [], []
        # The swapper may hit every call for a while.
        async with asyncio.timeout(60):
            while len(results) < 300 or not any(result.text == "mine" for result in results):
                results.append(await run(place, "read", path="real/x"))
            while len(writes) < 50 or all(result.is_error for result in writes):
                writes.append(await run(place, "write", path="real/y", content="!"))
    finally:
        swapper.kill()
        swapper.wait()
        swapper.stdout.close()

    assert not any("secret" in result.text for result in results)
    assert names(outside) == ["x"]


async def test_only_regular_files(place: ToolPlace) -> None:
    """A pipe does not block the reader, and is neither read nor replaced; nor is a folder or a socket."""
    (place.folder / "folder").mkdir(parents=True)
    os.mkfifo(place.folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(place.folder, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/sock")
        os.close(here)

        before = len(list(Path("/proc/self/fd").iterdir()))
        for path in ("pipe", "folder", "sock", "folder/") * 5:
            await refused(place, "read", path=path)
            await refused(place, "edit", path=path, old="a", new="b")
            await refused(place, "write", path=path, content="!")
        assert len(list(Path("/proc/self/fd").iterdir())) - before < 5
    assert stat.S_ISFIFO((place.folder / "pipe").stat().st_mode)


async def test_what_is_written_while_an_edit_is_made_is_not_lost(place: ToolPlace) -> None:
    """Chats of one person share their files."""
    await done(place, "write", path="list.md", content="old")
    writes: list[asyncio.Task[str]] = []
    loop = asyncio.get_running_loop()

    def change(old: bytes) -> bytes:
        asyncio.run_coroutine_threadsafe(begin(), loop).result()
        return old + b" and more"

    async def begin() -> None:
        writes.append(asyncio.create_task(done(place, "write", path="list.md", content="new")))
        await asyncio.wait(writes, timeout=0.3)

    await asyncio.to_thread(change_file, place.folder, "list.md", change)
    await writes[0]

    assert (place.folder / "list.md").read_text() == "new"


async def test_size_limits(place: ToolPlace) -> None:
    """A file over 10 MB is neither read nor written; a result is never over 64 kB."""
    place.folder.mkdir(parents=True)
    with (place.folder / "big").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (place.folder / "long").write_text("é" * 100_000)

    assert "too large" in await refused(place, "read", path="big")
    assert "nothing was written" in await refused(
        place, "write", path="new", content="x" * (MAX_FILE_BYTES + 1)
    )
    text = await done(place, "read", path="long")
    assert len(text.encode()) <= MAX_RESULT_BYTES
    assert "64" in text[-80:] or "65536" in text[-80:]
    assert not (place.folder / "new").exists()


async def test_long_files_come_in_parts(place: ToolPlace) -> None:
    """Reading on as each part says gives the whole file."""
    place.folder.mkdir(parents=True)
    lines = [f"line {i} " + "x" * (i % 90) for i in range(5000)]
    (place.folder / "a").write_text("\n".join(lines) + "\n")

    got: list[str] = []
    offset = 1
    while offset:
        text = await done(place, "read", path="a", offset=offset)
        assert len(text.encode()) <= MAX_RESULT_BYTES
        body, _, note = text.rpartition("\n[")
        got += (body if "continue with" in note else text).split("\n")
        offset = int(note.split("offset=")[1].rstrip("]")) if "continue with" in note else 0

    assert got == lines
    assert (
        await done(place, "read", path="a", offset=2, limit=1)
        == f"{lines[1]}\n[4998 more lines; continue with offset=3]"
    )
    assert "5000 lines" in await refused(place, "read", path="a", offset=5001)


async def test_binary_and_bad_text(place: ToolPlace) -> None:
    """Bytes that are no text are refused; odd bytes within a text are shown as such."""
    place.folder.mkdir(parents=True)
    (place.folder / "bin").write_bytes(b"\x7fELF\0\0")
    (place.folder / "bad").write_bytes(b"a\xffb")
    (place.folder / "none").write_bytes(b"")

    assert "not a text" in await refused(place, "read", path="bin")
    assert await done(place, "read", path="bad") == "a\ufffdb"
    assert await done(place, "read", path="none") == ""


async def test_write_keeps_permissions_and_leaves_no_rest(place: ToolPlace) -> None:
    """A replaced file keeps its mode; no temporary file stays, and killed writers' are swept later."""
    place.folder.mkdir(parents=True)
    (place.folder / "a").write_text("old")
    (place.folder / "a").chmod(0o640)
    rest = place.folder / ".chat-gateway-dead.tmp"
    rest.write_text("half")
    os.utime(rest, (0, 0))

    await done(place, "write", path="a", content="new")

    assert names(place.folder) == ["a"]
    assert (place.folder / "a").read_text() == "new"
    assert stat.S_IMODE((place.folder / "a").stat().st_mode) == 0o640


async def test_a_full_disk_leaves_the_old_file(place: ToolPlace) -> None:
    """When the disk takes no more, the file is as it was and the model is told."""
    await done(place, "write", path="a", content="old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        said = await refused(place, "write", path="a", content="x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "too large" in said
    assert (place.folder / "a").read_text() == "old"
    assert names(place.folder) == ["a"]


async def test_errors_name_no_place_of_this_machine(place: ToolPlace) -> None:
    """What the model is told holds the path as it wrote it, and nothing of the folder."""
    for tool in ("read", "ls"):
        said = await refused(place, tool, path="none/such")
        assert "none/such" in said
        assert str(place.folder) not in said
    assert "too long" in await refused(place, "write", path="n" * 300, content="")


@given(st.text(max_size=12), st.text(alphabet="./ab~", max_size=12))
@drawn(100)
def test_no_path_escapes(tmp_path_factory: pytest.TempPathFactory, wild: str, dotted: str) -> None:
    """Whatever the path, nothing but the folder changes."""
    top = tmp_path_factory.mktemp("t")
    place = ToolPlace(folder=top / "files", key="k")
    (top / "files").mkdir()

    for path in (wild, dotted, wild + dotted):
        asyncio.run(run(place, "write", path=path, content="x"))

    assert names(top) == ["files"]


@pytest.mark.parametrize("home", ["", "agents/clerk", "chats", "people"])
async def test_the_folder_that_all_share_shows_no_scopes_of_others(tmp_path: Path, home: str) -> None:
    """Groups and people have theirs below it: neither a path, nor a list, nor a search leads there.

    Whatever the folder is called in which the workspace lies.
    """
    top = tmp_path / home / "files"
    for name in ("chats/telegram_-5", "people/ada", "mine"):
        (top / name).mkdir(parents=True)
        (top / name / "x.txt").write_text("needle")
    place = ToolPlace(folder=top, key="cli:direct")
    box = Toolbox([Read(), Write(), Ls(), Grep()])

    async def done(name: str, **arguments: str) -> str:
        call = ToolCall("1", name, json.dumps(arguments))
        return (await box.run(call, place, ("read", "write", "ls", "grep"))).text

    assert await done("ls") == "mine/"
    assert await done("grep", pattern="needle") == "mine/x.txt:1: needle"
    for path in ("chats/telegram_-5/x.txt", "./mine/../people/ada/x.txt", f"{top}/people/ada/x.txt"):
        assert "there is no such file" in await done("read", path=path)
        assert "there is no such file" in await done("write", path=path, content="y")
    assert "there is no such file" in await done("write", path="People/x.txt", content="y")
    assert (top / "people/ada/x.txt").read_text() == "needle"
