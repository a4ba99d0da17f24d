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
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.errors import ToolError
from session.models.model import ToolCall, ToolSpec
from session.tools import MAX_RESULT_BYTES, Toolbox, ToolPlace, ToolResult, arguments_of, capped
from session.tools.beneath import change_file, threaded
from session.tools.files import MAX_FILE_BYTES, MAX_LINES, Edit, Grep, Ls, Read, Write
from session.tools.sandbox import SandboxOfDaemon
from session.tools.send_file import SendFile
from session.tools.shell import Shell
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

ALL = ("read", "write", "ls", "edit", "grep", "odd")
BOX = Toolbox([Read(), Write(), Ls(), Edit(), Grep(limit_s=60)])


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    folder = tmp_path / "ws" / "files"
    folder.mkdir(parents=True)
    return ToolPlace(folder=folder, key="cli:x")


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
    place.folder.rmdir()
    assert await done(place, "ls", path=".") == "(empty)"
    assert await done(place, "write", path="notes/a.txt", content="zwölf\n") == "wrote 7 bytes to notes/a.txt"

    assert await done(place, "read", path="notes/a.txt") == "zwölf"
    assert await done(place, "read", path=str(place.folder / "notes" / "a.txt")) == "zwölf"
    assert await done(place, "ls") == "notes/"
    assert await done(place, "ls", path="notes/../notes") == "a.txt (7 bytes)"
    assert stat.S_IMODE((place.folder / "notes").stat().st_mode) == 0o700
    assert stat.S_IMODE((place.folder / "notes/a.txt").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "/", "..", "a/../..", "x\0y", "~/../../x", "FILES-of-others/x"],
)
async def test_paths_that_leave_are_refused(place: ToolPlace, path: str) -> None:
    """No path leads above the folder, nor into one whose name begins like it, for any of the tools."""
    others, path = Path(f"{place.folder}-of-others"), path.replace("FILES", str(place.folder))
    others.mkdir(parents=True)
    for file in (place.folder.parent / "x", others / "x"):
        file.write_text("secret")

    for tool in ("read", "ls"):
        assert "secret" not in await refused(place, tool, path=path)
    await refused(place, "write", path=path, content="!")
    assert (place.folder.parent / "x").read_text() == (others / "x").read_text() == "secret"


@pytest.mark.parametrize("path", ["link", "dir/link", "out/x", "inner/a"])
async def test_links_are_never_followed(place: ToolPlace, tmp_path: Path, path: str) -> None:
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
    """A file over 10 MB is neither read nor written."""
    with (place.folder / "big").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    assert "too large" in await refused(place, "read", path="big")
    assert "nothing was written" in await refused(
        place, "write", path="new", content="x" * (MAX_FILE_BYTES + 1)
    )
    assert not (place.folder / "new").exists()


async def test_long_files_come_in_parts(place: ToolPlace) -> None:
    """Reading on as each part says gives the whole file."""
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
    (place.folder / "bin").write_bytes(b"\x7fELF\0\0")
    (place.folder / "bad").write_bytes(b"a\xffb")
    (place.folder / "none").write_bytes(b"")

    assert "not a text" in await refused(place, "read", path="bin")
    assert await done(place, "read", path="bad") == "a\ufffdb"
    assert await done(place, "read", path="none") == ""


async def test_write_keeps_permissions_and_leaves_no_rest(place: ToolPlace) -> None:
    """A replaced file keeps its mode; no temporary file stays, and killed writers' are swept later."""
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


async def test_slow_tools_keep_no_thread_from_what_is_sent() -> None:
    """… which the loop's own few threads serve."""
    go_on = threading.Event()
    slow = [asyncio.create_task(threaded("a", go_on.wait)) for _ in range(64)]
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "sent") == "sent"
        assert not any(task.done() for task in slow)
    finally:
        go_on.set()
        await asyncio.gather(*slow)


@pytest.mark.parametrize(("caption", "most"), [("x", 1024), ("🦀", 512)])
async def test_a_caption_that_every_platform_takes_is_taken_and_no_longer_one(
    tmp_path: Path, caption: str, most: int
) -> None:
    """An emoji counts as two, as Telegram counts: its file would be refused."""
    (tmp_path / "plan.txt").write_text("plan")
    here, tool = ToolPlace(tmp_path, "telegram:1"), SendFile(max_bytes=100)

    assert "plan.txt" in await tool.run({"path": "plan.txt", "caption": caption * most}, here)
    with pytest.raises(ToolError, match="put it in your answer"):
        await tool.run({"path": "plan.txt", "caption": caption * (most + 1)}, here)


@pytest.fixture
def stocked(place: ToolPlace) -> ToolPlace:
    (place.folder / "notes").mkdir()
    (place.folder / "notes" / "a.txt").write_text("one\nTwo\nthree\n")
    (place.folder / "b.txt").write_text("two and two\n")
    (place.folder.parent / "secret.txt").write_text("two secrets\n")
    return place


async def test_edit_replaces_one_passage_or_all(stocked: ToolPlace) -> None:
    """All else keeps its bytes."""
    said = await done(stocked, "edit", path="notes/a.txt", old="Two\n", new="2\n2\n")

    assert said == "replaced 1 passage in notes/a.txt"
    assert (stocked.folder / "notes" / "a.txt").read_text() == "one\n2\n2\nthree\n"
    said = await done(stocked, "edit", path="b.txt", old="two", new="2", all=True)
    assert (said, (stocked.folder / "b.txt").read_text()) == ("replaced 2 passages in b.txt", "2 and 2\n")


@pytest.mark.parametrize(
    ("old", "said"),
    [("four", "was not found"), ("two", "2 times"), ("", "empty"), ("x", "same as new")],
)
async def test_edit_refuses_what_is_not_clear(stocked: ToolPlace, old: str, said: str) -> None:
    assert said in await refused(stocked, "edit", path="b.txt", old=old, new="x")
    assert (stocked.folder / "b.txt").read_text() == "two and two\n"


async def test_edit_keeps_the_ends_of_lines_and_odd_bytes(stocked: ToolPlace) -> None:
    """CR LF stays CR LF though the model writes LF; bytes that are no UTF-8 stay."""
    path = stocked.folder / "w.txt"
    path.write_bytes(b"\xff1\r\n2\r\n3\r\n")

    await done(stocked, "edit", path="w.txt", old="2\n3", new="two\nthree")

    assert path.read_bytes() == b"\xff1\r\ntwo\r\nthree\r\n"


@pytest.mark.parametrize("path", ["../secret.txt", "link.txt", "notes", "none.txt"])
async def test_edit_stays_below_its_folder(stocked: ToolPlace, path: str) -> None:
    (stocked.folder / "link.txt").symlink_to("../secret.txt")

    await refused(stocked, "edit", path=path, old="two", new="!")

    assert (stocked.folder.parent / "secret.txt").read_text() == "two secrets\n"


async def test_edits_at_once_lose_nothing(stocked: ToolPlace) -> None:
    """Twenty changes of one file by twenty threads all stand in it."""

    def add(number: int) -> None:
        change_file(stocked.folder, "b.txt", lambda data: data + b"%d\n" % number)

    await asyncio.gather(*(asyncio.to_thread(add, number) for number in range(20)))

    lines = (stocked.folder / "b.txt").read_text().split()
    assert sorted(map(int, lines[3:])) == list(range(20))


async def test_grep_names_path_number_and_line(stocked: ToolPlace) -> None:
    assert await done(stocked, "grep", pattern="two") == "b.txt:1: two and two"
    assert await done(stocked, "grep", pattern="t[wh]", ignore_case=True) == (
        "b.txt:1: two and two\nnotes/a.txt:2: Two\nnotes/a.txt:3: three"
    )
    assert await done(stocked, "grep", pattern="^o", path="notes") == "notes/a.txt:1: one"
    assert await done(stocked, "grep", pattern="^o", path="notes/a.txt") == "notes/a.txt:1: one"
    assert await done(stocked, "grep", pattern="nowhere") == "(no line)"


@guarantee("failures", "A regular expression that never ends holds up neither its turn nor the gateway.")
@pytest.mark.slow
async def test_grep_stops_a_pattern_that_runs_for_ever(stocked: ToolPlace) -> None:
    """It is stopped, and the event loop stays free meanwhile."""
    (stocked.folder / "evil.txt").write_text("a" * 5000 + "!\n")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    ticking = asyncio.create_task(tick())
    arguments = json.dumps({"pattern": "(a|aa)+$", "path": "evil.txt"})
    said = await Toolbox([Grep(limit_s=1)]).run(ToolCall("c", "grep", arguments), stocked, ("grep",))
    ticking.cancel()

    assert said.is_error
    assert "over 1 s and was stopped" in said.text
    assert ticks > 10


async def test_grep_stays_below_its_folder(stocked: ToolPlace) -> None:
    (stocked.folder / "link.txt").symlink_to("../secret.txt")
    (stocked.folder / "out").symlink_to("..")

    assert "secret" not in await done(stocked, "grep", pattern="secret")
    for path in ("../secret.txt", "link.txt", "out", "out/secret.txt", "/etc/hosts"):
        assert "secrets" not in await refused(stocked, "grep", pattern="secret", path=path)


async def test_grep_is_bounded_and_skips_what_is_no_text(stocked: ToolPlace) -> None:
    (stocked.folder / "many.txt").write_text("hit\n" * 1000 + "h" * 1000)
    (stocked.folder / "binary").write_bytes(b"hit\0hit")

    rows = (await done(stocked, "grep", pattern="^h")).split("\n")

    assert len(rows) == MAX_LINES + 1
    assert rows[-1].startswith("[more lines than")
    assert len(await done(stocked, "grep", pattern="^hh")) < 400


async def test_grep_says_what_is_wrong_with_a_pattern(stocked: ToolPlace) -> None:
    assert "not a valid regular expression" in await refused(stocked, "grep", pattern="(")
    assert "not a valid regular expression: it has over" in await refused(stocked, "grep", pattern="x" * 5000)
    assert "no such file" in await refused(stocked, "grep", pattern="x", path="none")


class Odd:
    """A tool that fails in whatever way it is given."""

    repeatable = False
    spec = ToolSpec(
        "odd",
        "d",
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1},
                "how": {"type": "string", "enum": ["a", "b"]},
                "f": {"type": "number"},
            },
            "required": ["n"],
        },
    )

    def __init__(self, error: BaseException | None = None, text: str = "done") -> None:
        self.error = error
        self.text = text

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        if self.error is not None:
            raise self.error
        return self.text


async def odd(arguments: str, tool: Odd | None = None) -> ToolResult:
    return await Toolbox([tool or Odd()]).run(
        ToolCall("c", "odd", arguments), ToolPlace(Path("/x"), "k"), ALL
    )


async def test_unknown_and_forbidden_tools_are_an_error_result() -> None:
    here = ToolPlace(Path("/x"), "k")

    for call, allowed in ((ToolCall("c", "fly", "{}"), ALL), (ToolCall("c", "ls", "{}"), ("read",))):
        result = await BOX.run(call, here, allowed)
        assert result.is_error
        assert call.name in result.text
    assert [spec.name for spec in BOX.specs(("ls", "read"), ToolPlace(Path("/x"), "k"))] == ["read", "ls"]
    assert BOX.get("fly") is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{oops", "not JSON"),
        ("[1]", "not a JSON object"),
        ("", "'n' is missing"),
        ("{}", "'n' is missing"),
        ('{"n": "1"}', "'n' is not of type integer"),
        ('{"n": true}', "'n' is not of type integer"),
        ('{"n": 0}', "'n' is below 1"),
        ('{"n": 1, "how": "c"}', "'how' is not one of a, b"),
        ('{"n": 1, "f": "x"}', "'f' is not of type number"),
        ("[" * 100_000, "not JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_result(arguments: str, said: str) -> None:
    """The model is told what is wrong with its arguments; the tool does not run."""
    result = await odd(arguments, Odd(RuntimeError("it ran")))

    assert result.is_error
    assert said in result.text


async def test_half_a_character_in_the_arguments_becomes_one_that_can_be_stored() -> None:
    """JSON allows the escape of half a character, which no file and no letter can hold."""
    spec = ToolSpec("t", "", {"type": "object", "properties": {"text": {"type": "string"}}})
    call = ToolCall("c", "t", r'{"text": "a \ud83d \ud83d\ude00", "more": {"\ud83d": ["\udc00"]}}')

    assert arguments_of(call, spec) == {"text": "a \ufffd \U0001f600", "more": {"\ufffd": ["\ufffd"]}}


async def test_failures_become_error_results() -> None:
    assert await odd('{"n": 1}', Odd(ToolError("too dark"))) == ToolResult("error: too dark", is_error=True)
    surprise = await odd('{"n": 1}', Odd(RuntimeError("password 123")))
    assert surprise == ToolResult("error: the tool failed (RuntimeError)", is_error=True)
    assert await odd('{"n": 1, "f": 2}') == ToolResult("done")


async def test_cancellation_is_not_a_result() -> None:
    with pytest.raises(asyncio.CancelledError):
        await odd('{"n": 1}', Odd(asyncio.CancelledError()))


@given(st.text(max_size=200), st.integers(100, 300))
def test_capped_text_fits(text: str, limit: int) -> None:
    short = capped(text, limit)

    data = text.encode("utf-8", "replace")
    assert len(short.encode()) <= limit
    assert (short == data.decode()) or "[cut:" in short


def test_which_tools_may_run_again() -> None:
    assert [tool.repeatable for tool in (Read(), Ls(), Write())] == [True, True, False]
