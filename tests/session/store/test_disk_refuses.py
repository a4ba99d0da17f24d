"""What a disk does that is full, or slow, or fails: a conversation is whole all the same."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durable import state_database
from session.store.state import workspace_state
from tests.session.store_place import ADA, Make, path_of, turn
from tests.support.guarantee import guarantee


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
        held = [session.transcript.messages[at] for at in range(len(session))]

    async with make().open(ADA) as session:
        assert [session.transcript.messages[at] for at in range(len(session))] == held


def in_child(tmp_path: Path, before: str, body: str) -> dict[str, Any]:
    """Run ``body`` with a session open in a process whose disk fails as ``before`` arranges."""
    script = (
        "import asyncio, errno, json, os, resource, sys\n"
        "from pathlib import Path\n"
        "from datetime import UTC\n"
        "from session.errors import StoreError\n"
        "from session.store.store import Store\n"
        "from tests.session.store_place import ADA, AT, turn\n"
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
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr[-2000:]
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


LATE = """
with path.open('ab') as file:
    file.write(b'{"role":"user","content":"' + b'x' * 2_000_000 + b'"}\\n')
await session.append(turn('b'))
limit = path.stat().st_size + 10
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
out['committed'] = await session.append(turn('c'))
out['held'] = [line.get('message_id') for line in session.lines()][-2:]
"""
CRASH = """
print(json.dumps(out), flush=True)
os._exit(0)
"""


@guarantee("loss", "Lines that a full disk refused after their commit come into their file later, once.")
@pytest.mark.parametrize("crashes", [False, True])
async def test_lines_that_the_disk_refuses_behind_their_commit_come_later(
    make: Make, tmp_path: Path, crashes: bool
) -> None:
    """They are durable, and the caller goes on; what is written behind them has to wait."""
    refused = TRY.format(call="await session.append(turn('d'))")

    out = in_child(tmp_path, LATE, refused + (CRASH if crashes else LIFT.replace("'c'", "'e'")))

    assert (out["committed"], out["held"], out["error"], out["grew"]) == (5, ["c", "c"], "StoreError", 0)
    assert crashes or out["index"] == 7
    async with make().open(ADA) as session:
        ids = [line.get("message_id") for line in session.lines()]
    assert ids == ["a", "a", None, "b", "b", "c", "c", *([] if crashes else ["e", "e"])]


class Losing:
    """A disk that reports one sync as failed, and has nothing of what it should have written."""

    def __init__(self, path: Path, synced: int, *, shows: bool) -> None:
        self.path = path
        self.synced = synced
        self.shows = shows
        self.fails = True

    def __call__(self, fd: int) -> None:
        if self.fails and os.path.samestat(os.fstat(fd), self.path.stat()):
            self.fails = False
            lost = self.path.stat().st_size - self.synced
            with self.path.open("r+b") as file:
                # What the kernel gave up it may show for a while.
                if not self.shows:
                    os.pwrite(file.fileno(), bytes(lost), self.synced)
            raise OSError(errno.EIO, "broken")
        os.fdatasync(fd)


@guarantee("loss", "Lines whose sync failed are written again, into another file.")
@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("how", ["flush", "flush twice", "close", "new header"])
async def test_lines_whose_sync_failed_are_written_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, shows: bool
) -> None:
    """The next sync of the same file would report success for pages that the kernel gave up."""
    store, state = make(), workspace_state(tmp_path / "state")
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await state.flush()
        path = session.path
        first = path.open("rb")
        before = os.fstat(first.fileno())
        await session.append(turn("b"))
        lines = path.read_bytes().splitlines()[1:]
        monkeypatch.setattr(state_database, "sync_data", Losing(path, before.st_size, shows=shows))

        if how == "flush twice":
            with monkeypatch.context() as broken:
                broken.setattr(state_database, "replace", refusing)
                with pytest.raises(OSError, match="refused"):
                    await state.flush()
                assert await state.read("SELECT count(*) FROM file_ops") == [(1,)]
        if how.startswith("flush"):
            await state.flush()
            assert await state.read("SELECT count(*) FROM file_ops") == [(0,)]
        elif how == "new header":
            await session.checkpoint(metadata={"name": "x"})
    if how == "close":
        await store.aclose()

    with first:
        assert path.stat().st_ino != before.st_ino
    assert path.read_bytes().splitlines()[1:] == lines
    async with store.open(ADA) as session:
        assert await session.append(turn("c")) == 4


def refusing(*_: object) -> None:
    raise OSError(errno.EIO, "refused")


async def test_append_costs_the_same_in_a_long_transcript(make: Make, tmp_path: Path) -> None:
    """An append to 20,000 messages writes the new lines and nothing else."""
    async with make().open(ADA) as session:
        await session.append([line for at in range(10_000) for line in turn(str(at))])
        before = path_of(tmp_path).stat()

        await session.append(turn("new"))

        after = path_of(tmp_path).stat()
        assert after.st_ino == before.st_ino
        assert after.st_size - before.st_size < 400
