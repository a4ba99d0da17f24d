"""What a disk does that is full, or slow, or fails: a conversation is whole all the same."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.session.store_place import ADA, Make, path_of, turn


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


async def test_append_costs_the_same_in_a_long_transcript(make: Make, tmp_path: Path) -> None:
    """An append to 20,000 messages writes the new lines and nothing else."""
    async with make().open(ADA) as session:
        await session.append([line for at in range(10_000) for line in turn(str(at))])
        before = path_of(tmp_path).stat()

        await session.append(turn("new"))

        after = path_of(tmp_path).stat()
        assert after.st_ino == before.st_ino
        assert after.st_size - before.st_size < 400
