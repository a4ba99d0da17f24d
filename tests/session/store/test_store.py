"""Opening, writing, caching and listing conversations."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from session.disk.layout import Layout
from session.disk.threads import DiskThreads
from session.errors import LineTooLong, StoreError
from session.store.fence import Fence, Wait
from session.store.naming import resolve
from session.store.store import Store, utc_now
from session.store.writer import Moved, TranscriptWriter
from session.transcript.key import SessionKey, marked_stem
from session.transcript.transcript import MAX_LINE_BYTES, make_line

ADA = SessionKey("telegram:1")
AT = "2026-03-01T10:00:00.000001+00:00"
Make = Callable[..., Store]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Store] = []

    def open_store(**options: Any) -> Store:
        made.append(Store(options.pop("workspace", tmp_path), zone=UTC, **options))
        return made[-1]

    yield open_store
    for store in made:
        await store.aclose()


def turn(id_: str, answer: str = "yes", **fields: Any) -> list[dict[str, Any]]:
    return [
        make_line("user", f"q {id_}", AT, message_id=id_),
        make_line("assistant", answer, AT, message_id=id_, final=True, **fields),
    ]


def path_of(tmp_path: Path, stem: str = "telegram_1") -> Path:
    return tmp_path / "sessions" / f"{stem}.jsonl"


async def test_append_survives_and_is_found(make: Make) -> None:
    """What was appended is there for the next process, with indexes that count from 0."""
    async with make().open(ADA) as session:
        assert await session.append(turn("a")) == 0
        assert await session.append(turn("b")) == 2
        session_id = session.session_id

    async with make().open(ADA) as session:
        assert len(session) == 4
        assert session.session_id == session_id
        assert session.line(2)["message_id"] == "b"
        assert [line["role"] for line in session.lines(1, 3)] == ["assistant", "user"]
        assert json.loads(session.raw(3))["content"] == "yes"
        assert (found := session.find("b")) is not None
        assert (found.start, found.stop, found.final, found.tail) == (2, 4, 3, True)


async def test_nothing_is_written_by_looking(make: Make, tmp_path: Path) -> None:
    """A look leaves no file, lock or folder behind."""
    view = await make().look(ADA)

    assert len(view) == 0
    assert await make().rows() == []
    assert list(tmp_path.iterdir()) == []


async def test_files_are_private_whatever_the_umask(make: Make, tmp_path: Path) -> None:
    """Folders are 0700 and files 0600."""
    old = os.umask(0)
    try:
        async with make(workspace=tmp_path / "w").open(ADA) as session:
            await session.append(turn("a"))
            await session.journal.conclude("c", "command")
            await session.checkpoint(metadata={"name": "x"})
            await session.end()
    finally:
        os.umask(old)

    for path in (tmp_path / "w").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


async def test_torn_last_line(make: Make, tmp_path: Path) -> None:
    """A crash in mid-write costs the unfinished line and no other."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
    with path_of(tmp_path).open("ab") as file:
        file.write(b'{"role": "us')

    async with make().open(ADA) as session:
        assert await session.append(turn("b")) == 2

    assert len(path_of(tmp_path).read_bytes().split(b"\n")) == 1 + 4 + 1
    assert not list(path_of(tmp_path).parent.glob("*corrupt*"))


async def test_line_too_long_writes_nothing(make: Make, tmp_path: Path) -> None:
    """A line over the limit is refused with the file as it was."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
        before = path_of(tmp_path).read_bytes()

        with pytest.raises(LineTooLong):
            await session.append([*turn("b"), make_line("user", "x" * MAX_LINE_BYTES, AT)])

        assert path_of(tmp_path).read_bytes() == before
        assert await session.append(turn("b")) == 2


async def test_edit_by_hand_is_seen(make: Make, tmp_path: Path) -> None:
    """A file changed behind our back is read again, before a turn and before a write."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
        text = path_of(tmp_path).read_text()
        path_of(tmp_path).write_text(text.replace("q a", "q edited by hand"))

        assert await session.append(turn("b")) == 2

        assert session.line(0)["content"] == "q edited by hand"
        path_of(tmp_path).write_text(path_of(tmp_path).read_text().replace("yes", "no", 1))
    store = make()
    for expected in ("no", "nay"):
        async with store.open(ADA) as session:
            assert session.line(1)["content"] == expected
        path_of(tmp_path).write_text(path_of(tmp_path).read_text().replace("no", "nay", 1))


async def test_file_deleted_by_hand_begins_anew(make: Make, tmp_path: Path) -> None:
    """A transcript that somebody deleted is an empty session, in mid-turn too."""
    store = make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        path_of(tmp_path).unlink()
        assert await session.append(turn("b")) == 0
        path_of(tmp_path).unlink()

    async with store.open(ADA) as session:
        assert len(session) == 0


async def test_checkpoint_keeps_lines_and_foreign_fields(make: Make, tmp_path: Path) -> None:
    """Line 1 is renewed; message bytes, unknown fields and other metadata stay."""
    path = path_of(tmp_path)
    path.parent.mkdir()
    head = (
        '{"_type":"metadata","key":"telegram:1","created_at":"2026-02-25T08:42:53.023127",'
        '"updated_at":"2026-02-25T08:42:53.023127","metadata":{"theirs":1,"gone":2},"last_consolidated":0,"x":[1]}'
    )
    body = '{"role":"user",  "content":"odd  spaces","_extra":{"k":1.50}}'
    path.write_text(f"{head}\n{body}\n")

    async with make().open(ADA) as session:
        await session.checkpoint(metadata={"name": "n", "gone": None}, last_consolidated=1)
        assert session.metadata["name"] == "n"
        assert session.last_consolidated == 1

    first, second = path.read_text().splitlines()
    line = json.loads(first)
    assert second == body
    assert line["created_at"] == "2026-02-25T08:42:53.023127"
    assert line["updated_at"] > line["created_at"]
    assert line["x"] == [1]
    assert {k: line["metadata"][k] for k in line["metadata"] if k != "session_id"} == {
        "theirs": 1,
        "name": "n",
    }


async def test_background_checkpoint_spares_the_turn(make: Make) -> None:
    """Turn and background job of a key write at once; neither invalidates the other."""
    store = make()
    async with store.open(ADA) as running, store.open(ADA) as background:
        await running.append(turn("a"))

        async def work() -> None:
            for number in range(10):
                await background.checkpoint(last_consolidated=1, metadata={"n": number})

        async def talk() -> None:
            for number in range(10):
                await running.append(turn(str(number)))

        await asyncio.gather(work(), talk())

    async with make().open(ADA) as session:
        assert len(session) == 22
        assert session.metadata["n"] == 9


@pytest.mark.parametrize(
    ("one", "two"), [("a:b:c", "a:b_c"), ("x:1?", "x:1*"), ("x:a/b", "x:a\\b"), ("x: a", "x: a ")]
)
async def test_two_keys_never_share_a_file(make: Make, one: str, two: str) -> None:
    """Where the file name rule maps two keys to one name, each keeps its own file, for every process."""
    store = make()
    async with store.open(SessionKey(one)) as first, store.open(SessionKey(two)) as second:
        await asyncio.gather(first.append(turn("one")), second.append(turn("two")))
        assert {first.stem, second.stem} in ({first.stem, marked_stem(two)}, {marked_stem(one), second.stem})
        assert first.stem != second.stem

    other = make()
    for key, id_ in ((one, "one"), (two, "two")):
        async with other.open(SessionKey(key)) as session:
            assert [line["message_id"] for line in session.lines()] == [id_, id_]
            assert await other.stem(SessionKey(key)) == session.stem


async def test_loser_of_a_race_for_a_name_resolves_anew(tmp_path: Path) -> None:
    """Of two keys that found one name free in the same moment, the second to claim it must look again."""
    layout, one, two = Layout(tmp_path), SessionKey("a:b:c"), SessionKey("a:b_c")
    assert resolve(layout, one) == resolve(layout, two) == "a_b_c"

    def writer(key: SessionKey) -> TranscriptWriter:
        fence = Fence(layout, "a_b_c", owner=key, freeze_s=30)
        return TranscriptWriter(layout, "a_b_c", key, fence=fence, clock=utc_now)

    assert writer(one).claim(Wait()) == 1
    with pytest.raises(Moved):
        writer(two).claim(Wait())
    assert resolve(layout, one) == "a_b_c"
    assert resolve(layout, two) == marked_stem(two)


async def test_file_taken_over_by_another_key_in_mid_turn(make: Make, tmp_path: Path) -> None:
    """When another program puts its own conversation under our name, we leave it alone and move."""
    store = make()
    key = SessionKey("cli:user_name")
    async with store.open(key) as session:
        await session.append(turn("a"))
        theirs = path_of(tmp_path, "cli_user_name").read_text().replace("cli:user_name", "cli:user:name")
        path_of(tmp_path, "cli_user_name").write_text(theirs)

        with pytest.raises(StoreError):
            await session.append(turn("b"))

    async with store.open(key) as session:
        assert session.stem == marked_stem(key)
        await session.append(turn("b"))
    assert path_of(tmp_path, "cli_user_name").read_text() == theirs


@pytest.mark.parametrize(
    "key",
    [
        "x:" + "k" * 500,
        "x:" + "ü" * 300,
        "x:\0",
        "..",
        ".",
        "",
        "x:../../etc/passwd",
        "x:🦊" * 90,
        "/",
        "x:\ud800",
    ],
)
async def test_every_key_has_a_safe_file(make: Make, tmp_path: Path, key: str) -> None:
    """Any key is kept, in one file directly inside sessions/, and its journal and archive beside."""
    async with make().open(SessionKey(key)) as session:
        await session.append(turn("a"))
        await session.journal.conclude("c", "command", text="x")
        await session.checkpoint(metadata={"n": 1})
        await session.end()
        await session.append(turn("b"))

    async with make().open(SessionKey(key)) as session:
        assert session.path.parent == tmp_path / "sessions"
        assert session.path.exists()
        assert [line["message_id"] for line in session.lines()] == ["b", "b"]
    assert len(await make().rows()) == 2


async def test_long_name_damaged_file_is_kept_beside(make: Make, tmp_path: Path) -> None:
    """The copy of a damaged file gets a shorter name where its own would grow too long."""
    key = SessionKey("x:" + "ü" * 123)
    async with make().open(key) as session:
        await session.append(turn("a"))
        path = session.path
    path.write_bytes(path.read_bytes() + b"garbage\n")

    async with make().open(key) as session:
        await session.append(turn("b"))

    assert len(list((tmp_path / "sessions").glob("*.corrupt-*"))) == 1


async def test_cache_is_bounded_in_bytes(make: Make) -> None:
    """Conversations nobody uses leave memory when all together weigh too much, used ones never."""
    store = make(cache_bytes=400_000)
    async with store.open(ADA) as held:
        await held.append([make_line("user", "x" * 300_000, AT)])
        for number in range(20):
            async with store.open(SessionKey(f"cli:{number}")) as session:
                await session.append([make_line("user", "y" * 50_000, AT)])
            assert store.cached_bytes() <= 400_000 + 310_000
        assert held.line(0)["content"] == "x" * 300_000
        async with store.open(ADA) as second:
            assert second.transcript is held.transcript
        assert await held.append(turn("a")) == 1
    async with store.open(SessionKey("cli:0")) as session:
        assert len(session) == 1
    assert store.cached_bytes() <= 400_000


async def test_clear_leaves_nothing_but_the_ids(make: Make, tmp_path: Path) -> None:
    """Clearing deletes the transcript without an archive; running turns end unwritten, ids stay known."""
    store = make(clock=lambda: datetime(2026, 3, 1, 11, tzinfo=UTC))
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.journal.conclude("c", "command", text="x")
        seq = session.seq

        assert await store.clear(ADA, ids=["running"])

        with pytest.raises(StoreError):
            await session.append(turn("running"))
    assert not path_of(tmp_path).exists()
    assert not list(tmp_path.rglob("*archive*"))
    async with store.open(ADA) as session:
        assert len(session) == 0
        for id_ in ("a", "running"):
            assert (known := session.journal.known(id_)) is not None
            assert known.kind == "cleared"
        await session.append(turn("b"))
        assert session.seq_of("b") == seq + 1
    assert await store.clear(SessionKey("cli:never")) is False


async def test_rows_tell_what_is_in_the_files(make: Make) -> None:
    """A row is true after each turn: counts, tokens, price, times."""
    store = make()
    async with store.open(SessionKey("cron:job")) as session:
        await session.append(turn("a", usage={"prompt": 10, "completion": 5, "cost_usd": 0.5}))
        await store.rows()
        await session.append(turn("b", usage={"prompt": 1, "completion": 1, "cost_usd": 0.25}))
        await session.checkpoint(metadata={"name": "n", "model": "m", "cron_job_id": "job"})

        [row] = await store.rows()

        assert row.as_dict() == {
            "id": session.session_id,
            "key": "cron:job",
            "name": "n",
            "created_at": row.created_at,
            "last_message_at": AT,
            "message_count": 4,
            "model": "m",
            "source": "cron",
            "cron_job_id": "job",
            "active": True,
            "metrics": {"prompt_tokens": 11, "completion_tokens": 6, "cost_usd": 0.75, "turns": 2},
        }
        assert (view := await store.look_up(row.id)) is not None
        assert view.key == "cron:job"


async def test_cancelled_append_is_whole_or_absent(make: Make) -> None:
    """Cancelling a turn in mid-append leaves the session usable and what it holds true to the file."""
    store = make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        task = asyncio.ensure_future(session.append(turn("b")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.append(turn("c"))
        held = [session.raw(at) for at in range(len(session))]

    async with make().open(ADA) as session:
        assert [session.raw(at) for at in range(len(session))] == held


async def test_appends_of_many_keys_share_hops() -> None:
    """While one batch runs the next collects; a batch comes back in one wake-up."""
    hop = DiskThreads(threads=1)
    gate = threading.Event()
    ran: list[int] = []
    first = hop.start(gate.wait)
    rest = [hop.start(lambda at=at: ran.append(at)) for at in range(50)]  # type: ignore[misc]
    assert ran == []

    gate.set()
    await asyncio.gather(first, *rest)

    assert ran == list(range(50))
    hop.close()
    with pytest.raises(StoreError):
        hop.start(gate.wait)


def in_child(tmp_path: Path, before: str, body: str) -> dict[str, Any]:
    """Run ``body`` with a session open in a process whose disk fails as ``before`` arranges."""
    script = (
        "import asyncio, errno, json, os, resource, sys\n"
        "from pathlib import Path\n"
        "from datetime import UTC\n"
        "from session.errors import StoreError\n"
        "from session.store.store import Store\n"
        "from tests.session.store.test_store import ADA, AT, turn\n"
        "from session.transcript.transcript import make_line\n"
        "out = {}\n"
        "path = Path(sys.argv[1]) / 'sessions' / 'telegram_1.jsonl'\n"
        "async def main():\n"
        "    store = Store(Path(sys.argv[1]), zone=UTC)\n"
        "    async with store.open(ADA) as session:\n"
        "        await session.append(turn('a'))\n"
        f"{_indent(before)}\n{_indent(body)}\n"
        "    await store.aclose()\n"
        "asyncio.run(main())\n"
        "print(json.dumps(out))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=30
    )
    out: dict[str, Any] = json.loads(done.stdout)
    return out


def _indent(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.strip("\n").splitlines())


FULL = """
limit = path.stat().st_size + {room}
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""
TRY = """
size = path.stat().st_size
try:
    {call}
    out['error'] = None
except StoreError as error:
    out['error'] = type(error).__name__
out['grew'] = path.stat().st_size - size
"""
LIFT = """
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
out['index'] = await session.append(turn('c'))
"""


@pytest.mark.parametrize("room", [0, 1, 60, 150])
@pytest.mark.parametrize(
    "call",
    [
        "await session.append(turn('b', 'x' * 5000))",
        "await session.checkpoint(metadata={'name': 'x' * 5000})",
        "await session.journal.conclude('c', 'command', text='x' * 50000)",
        "await session.end(metadata={'name': 'x' * 5000})",
    ],
)
async def test_full_disk_leaves_nothing_half_written(
    make: Make, tmp_path: Path, call: str, room: int
) -> None:
    """A disk that takes no more, or only a part, costs the write and no byte of the file."""
    out = in_child(tmp_path, FULL.format(room=room), TRY.format(call=call) + LIFT)

    assert out == {"error": "StoreError", "grew": 0, "index": 2}
    async with make().open(ADA) as session:
        assert [line["message_id"] for line in session.lines()] == ["a", "a", "c", "c"]
        assert not session.transcript.torn
    assert not list(tmp_path.rglob("*.tmp"))


FAILING = """
def failing(fd):
    raise OSError(errno.EIO, 'broken')
sync, os.fdatasync = os.fdatasync, failing
"""


async def test_failed_sync_reads_the_file_again(make: Make, tmp_path: Path) -> None:
    """After a failed sync nobody trusts what was written: the file is read anew, the next write works."""
    out = in_child(
        tmp_path,
        FAILING,
        TRY.format(call="await session.append(turn('b'))")
        + "os.fdatasync = sync\nout['index'] = await session.append(turn('c'))\nout['held'] = len(session)",
    )

    assert out["error"] == "StoreError"
    async with make().open(ADA) as session:
        assert len(session) == out["held"] == out["index"] + 2
        assert [line["message_id"] for line in session.lines()][-2:] == ["c", "c"]


async def test_listing_times_are_in_the_zone(tmp_path: Path, make: Make) -> None:
    """Rows show their times in the configured zone."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
    store = Store(tmp_path, zone=timezone(timedelta(hours=2)))

    [row] = await store.rows()

    assert row.last_message_at == "2026-03-01T12:00:00.000001+02:00"
    await store.aclose()


async def test_append_costs_the_same_in_a_long_transcript(make: Make, tmp_path: Path) -> None:
    """An append to 20,000 messages writes the new lines and nothing else."""
    async with make().open(ADA) as session:
        await session.append([line for at in range(10_000) for line in turn(str(at))])
        before = path_of(tmp_path).stat()

        await session.append(turn("new"))

        after = path_of(tmp_path).stat()
        assert after.st_ino == before.st_ino
        assert after.st_size - before.st_size < 400
