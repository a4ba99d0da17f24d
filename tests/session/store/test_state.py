"""The one writer of a workspace: jobs that meet, programs that write in between, a second process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durable import Append, Conflict, StateWriter, append_whole, look, state_database
from session.errors import Fenced
from session.store.state import replay, workspace_state
from session.transcript.line import make_line
from session.transcript.transcript import encode
from tests.session.store_place import ADA, AT, Make, turn
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
THEIRS = encode(make_line("user", "theirs", AT)) + b"\n"


async def test_of_two_jobs_for_one_file_in_a_batch_the_second_meets_a_conflict(tmp_path: Path) -> None:
    """It does not know what the first leaves; nothing of it is done."""
    path = tmp_path / "sessions/a.jsonl"
    writer = StateWriter(tmp_path / "state", replay=replay)
    async with writer.opened():
        for data in (b"first\n", b"second\n"):
            jobs = [Append(str(path), look(str(path)), b"%d %b" % (at, data), ULID) for at in range(3)]
            done = await asyncio.gather(*(writer.write([], [job]) for job in jobs), return_exceptions=True)
            assert [type(each) for each in done] == [list, Conflict, Conflict]
        assert await writer.read("SELECT count(*) FROM file_ops") == [(2,)]

    assert path.read_bytes() == b"0 first\n0 second\n"


async def test_a_writer_that_is_opened_while_it_closes_is_open(tmp_path: Path) -> None:
    """The lock is not another process's."""
    writer = StateWriter(tmp_path / "state", replay=replay)

    async def used() -> None:
        async with writer.opened():
            await asyncio.sleep(0)
            assert await writer.read("SELECT count(*) FROM journal") == [(0,)]

    for _ in range(5):
        closing = asyncio.create_task(used())
        for _ in range(4):
            await asyncio.sleep(0)
        await asyncio.gather(closing, used())
        cancelled = asyncio.create_task(used())
        await asyncio.sleep(0)
        cancelled.cancel()


def appends(path: Path) -> None:
    with path.open("ab") as file:
        file.write(THEIRS)


def appends_half(path: Path) -> None:
    with path.open("ab") as file:
        file.write(THEIRS[:20])


def rewrites(path: Path) -> None:
    temp = path.with_suffix(".theirs")
    temp.write_bytes(path.read_bytes() + THEIRS)
    temp.rename(path)


@guarantee(
    "storage", "A transcript keeps its lines and those of a program that wrote to it at the same moment."
)
@pytest.mark.parametrize(
    ("writes", "when"),
    [
        (appends, "commit"),
        (appends_half, "commit"),
        (rewrites, "commit"),
        (appends, "append"),
        (rewrites, "append"),
    ],
)
async def test_what_another_program_writes_between_commit_and_append_stays(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Callable[[Path], None], when: str
) -> None:
    """Ours comes behind it, whole and once, and the caller learns where it stands."""
    store, state = make(), workspace_state(tmp_path / "state")
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        left = [session.path]

        def once(name: str) -> None:
            if name == "committed" and left:
                writes(left.pop())

        def late(*args: Any, **more: Any) -> None:
            once("committed")
            append_whole(*args, **more)

        if when == "commit":
            state.at = once
        else:
            monkeypatch.setattr(state_database, "append_whole", late)
        first = await session.append(turn("b"))
        held = [line["content"] for line in session.lines()]

        theirs = ["theirs"] if writes is not appends_half else []
        assert held == ["q a", "yes", *theirs, "q b", "yes"]
        assert held[first] == "q b"
        await session.append(turn("c"))
    async with make().open(ADA) as session:
        assert [line["content"] for line in session.lines()] == [*held, "q c", "yes"]
    assert THEIRS[:20] in session.path.read_bytes() + b"".join(
        copy.read_bytes() for copy in session.path.parent.glob("*.corrupt-*")
    )


async def test_another_session_that_takes_the_file_behind_the_commit_is_left_alone(
    make: Make, tmp_path: Path
) -> None:
    """The turn is told, and begins again."""
    store, state = make(), workspace_state(tmp_path / "state")
    other = make(workspace=tmp_path / "other")
    async with other.open(ADA) as session:
        await session.append(turn("theirs"))
    theirs = session.path.read_bytes()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        state.at = lambda name: session.path.write_bytes(theirs) if name == "committed" else None  # type: ignore[assignment,func-returns-value]
        with pytest.raises(Fenced):
            await session.append(turn("b"))
        state.at = lambda _: None
    await store.aclose()

    assert session.path.read_bytes() == theirs


SECOND = """
import asyncio, json, sys
from datetime import UTC
from pathlib import Path
from session.errors import StoreError
from session.store.store import Store
from tests.session.store_place import ADA, turn

async def main():
    store = Store(Path(sys.argv[1]), zone=UTC)
    view = await store.look(ADA)
    out = {"lines": [line["content"] for line in view.lines()], "known": view.journal.known("command").text}
    for name, work in (("append", append), ("clear", store.clear(ADA))):
        try:
            await (work(store) if name == "append" else work)
        except StoreError as error:
            out[name] = str(error)
    await store.aclose()
    print(json.dumps(out))

async def append(store):
    async with store.open(ADA) as session:
        await session.append(turn("theirs"))

asyncio.run(main())
"""


@guarantee("writer", "A second process on a workspace reads it and is refused to write.")
async def test_a_second_process_reads_from_a_copy_and_may_not_write(make: Make, tmp_path: Path) -> None:
    """Nothing was flushed yet, and nothing of it is held up."""
    store = make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.journal.conclude("command", "command", text="done")
        command = [sys.executable, "-c", SECOND, str(tmp_path)]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=60
        )
        await session.append(turn("b"))

        assert json.loads(done.stdout) == {
            "lines": ["q a", "yes"],
            "known": "done",
            "append": "another process uses this workspace",
            "clear": "another process uses this workspace",
        }
        assert [line["content"] for line in session.lines()] == ["q a", "yes", "q b", "yes"]


async def test_a_store_that_was_refused_writes_once_the_other_is_gone(make: Make, tmp_path: Path) -> None:
    """Closed and opened again it is no longer a second process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        await asyncio.to_thread(holder.stdout.readline)
        store = make()
        assert len(await store.look(ADA)) == 2
        await store.aclose()
    finally:
        await asyncio.to_thread(holder.communicate, b"\n")

    async with store.open(ADA) as session:
        assert await session.append(turn("b")) == 2


HOLDER = """
import asyncio, sys
from datetime import UTC
from pathlib import Path
from session.store.store import Store
from tests.session.store_place import ADA, turn

async def main():
    store = Store(Path(sys.argv[1]), zone=UTC)
    async with store.open(ADA) as session:
        await session.append(turn("a"))
    print("open", flush=True)
    sys.stdin.readline()
    await store.aclose()

asyncio.run(main())
"""
