"""One writer per key: two processes, frozen ones, and ones that die at any step."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from session.errors import Fenced
from session.store.store import Store
from tests.session.nursery import DONE, FENCED, KEY, lines
from tests.support.guarantee import guarantee

pytestmark = guarantee("writer", "A process that lost its lock on a chat changes nothing.")

NEVER = 10**6
OPS = ("append", "create", "repair", "torn", "checkpoint", "end", "journal", "clear")
HEAD = {
    "_type": "metadata",
    "key": KEY,
    "created_at": "2026-02-25T08:42:53.023127",
    "updated_at": "2026-02-26T09:36:14.486980",
    "metadata": {},
    "last_consolidated": 0,
}


class Nursery:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.session.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def run(
        self, op: str, workspace: Path, *, at: int = NEVER, number: int = signal.SIGSTOP, **more: str
    ) -> dict[str, Any]:
        return self._ask(do="run", op=op, at=at, signal=int(number), workspace=str(workspace), **more)

    def wake(self) -> dict[str, Any]:
        return self._ask(do="wake")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def furnish(workspace: Path, op: str) -> None:
    """Lay down the transcript that ``op`` starts from."""
    shutil.rmtree(workspace, ignore_errors=True)
    folder = workspace / "sessions"
    folder.mkdir(parents=True)
    if op == "create":
        return
    data = b"".join(json.dumps(line).encode() + b"\n" for line in [HEAD, *lines("old")])
    if op == "repair":
        data += b'{"_type": "odd"}\n'
    if op == "torn":
        data += b'{"role": "user", "con'
    (folder / "telegram_1.jsonl").write_bytes(data)


def open_store(workspace: Path, **options: Any) -> Store:
    return Store(workspace, zone=UTC, clock=lambda: datetime(2026, 3, 1, 13, tzinfo=UTC), **options)


def ids(path: Path) -> list[str]:
    """Read a file as strictly as any reader may: line 1, then lines with a role; return its user ids."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    head, *messages = [json.loads(raw) for raw in data.decode().split("\n")[:-1]]
    assert head["_type"] == "metadata"
    assert head["key"] == KEY
    assert all("_type" not in line and line["role"] in ("user", "assistant") for line in messages)
    users = [line["message_id"] for line in messages if line["role"] == "user"]
    assert [line["message_id"] for line in messages] == [id_ for id_ in users for _ in range(2)]
    return users


def everything(workspace: Path) -> list[str]:
    """Return the ids of the ended sessions and of the active one."""
    archived = [id_ for path in sorted(workspace.glob("sessions/archive/*/*.jsonl")) for id_ in ids(path)]
    active = workspace / "sessions" / "telegram_1.jsonl"
    return archived + (ids(active) if active.exists() else [])


def leftovers(workspace: Path) -> list[Path]:
    return list(workspace.rglob("*.tmp*"))


async def take_over(workspace: Path) -> None:
    store = open_store(workspace, freeze_s=0.03)
    try:
        async with asyncio.timeout(60), store.open(KEY) as session:
            await session.append(lines("parent"))
            await session.journal.conclude("parent", "command", text="done by parent")
    finally:
        await store.aclose()


@pytest.mark.parametrize("op", OPS)
async def test_frozen_writer_wakes_fenced(nursery: Nursery, tmp_path: Path, op: str) -> None:
    """A writer frozen at any step is overtaken; awake again it changes nothing that anybody reads."""
    furnish(tmp_path / "dry", op)
    dry = nursery.run(op, tmp_path / "dry")
    assert dry["status"] == DONE
    fenced = 0

    for at, step in enumerate(dry["steps"]):
        workspace = tmp_path / f"{at}"
        furnish(workspace, op)
        assert nursery.run(op, workspace, at=at)["stopped"], step
        await take_over(workspace)
        before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}

        woken = nursery.wake()

        where = f"{op} frozen before step {at}, {step}"
        assert woken["status"] in (DONE, FENCED), where
        fenced += woken["status"] == FENCED
        # It held no lock: it cleared before the other, or after it.
        if op == "clear" and woken["status"] == DONE:
            assert everything(workspace) in ([], ["parent"]), where
            continue
        after = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
        assert {p: d for p, d in after.items() if p in before} == {
            p: d for p, d in before.items() if p in after
        }
        assert not [p for p in after if p not in before and p.suffix != ".tmp"], where
        assert not [
            p for p in before if p not in after and ".tmp" not in p.name and ".tmp" not in p.parent.name
        ]
        found = everything(workspace)
        assert found.count("parent") == 1, where
        assert found[-1] == "parent", where
        assert found.count("old") <= 1 or op == "end", where
        if op not in ("create", "clear"):
            assert "old" in found, where
        if woken["status"] == DONE and op in ("append", "create", "repair", "torn"):
            assert "child" in found, where
        store = open_store(workspace)
        async with store.open(KEY) as session:
            known = session.journal.known("parent")
            assert known is not None, where
            assert known.text == "done by parent"
            if woken["status"] == DONE and op == "journal":
                assert session.journal.known("child") is not None, where
        await store.aclose()
        shutil.rmtree(workspace)
    assert fenced >= 3


@pytest.mark.parametrize("op", OPS)
async def test_killed_writer_costs_a_repeat_at_most(nursery: Nursery, tmp_path: Path, op: str) -> None:
    """After kill -9 before any step the next process reads whole files, and can do the work again."""
    furnish(tmp_path / "dry", op)
    dry = nursery.run(op, tmp_path / "dry")

    for at, step in enumerate(dry["steps"]):
        where = f"{op} killed before step {at}, {step}"
        workspace = tmp_path / f"{at}"
        furnish(workspace, op)
        assert nursery.run(op, workspace, at=at, number=signal.SIGKILL)["status"] == -signal.SIGKILL, where
        store = open_store(workspace)
        async with store.open(KEY) as session:
            if op in ("append", "create", "repair", "torn") and session.find("child") is None:
                await session.append(lines("child"))
            if op == "checkpoint":
                await session.checkpoint(metadata={"name": "again"})
            if op == "end":
                await session.end()
                assert (known := session.journal.known("old")) is not None, where
                assert known.text == "answer of old", where
            if op == "journal" and session.journal.known("child") is None:
                await session.journal.conclude("child", "command", text="done by child")
            if op == "clear":
                await store.clear(KEY)
        async with store.open(KEY) as session:
            await session.append(lines("next"))
        assert await store.verify() == [], where
        await store.aclose()

        expected = {"clear": ["next"], "create": ["child", "next"]}.get(op, ["old", "next"])
        if op in ("append", "repair", "torn"):
            expected = ["old", "child", "next"]
        assert everything(workspace) == expected, where
        assert leftovers(workspace) == [], where
        shutil.rmtree(workspace)


async def test_second_owner_ends_the_first_ones_turn(tmp_path: Path) -> None:
    """Who is handed a key that another owns raises the epoch: the other's turn ends unwritten."""
    one, two = open_store(tmp_path, owner="one"), open_store(tmp_path, owner="two")
    async with one.open(KEY) as old, two.open(KEY) as new:
        await new.append(lines("new"))

        with pytest.raises(Fenced):
            await old.append(lines("late"))
        with pytest.raises(Fenced):
            await old.checkpoint(metadata={"name": "late"})
        with pytest.raises(Fenced):
            await old.end()
        with pytest.raises(Fenced):
            await old.journal.conclude("late", "command")

        async with one.open(KEY) as again:
            assert again.find("new") is not None
            await again.append(lines("old"))
            for lost in (old, new):
                with pytest.raises(Fenced):
                    await lost.append(lines("late"))
    assert ids(tmp_path / "sessions" / "telegram_1.jsonl") == ["new", "old"]
    await one.aclose()
    await two.aclose()


async def test_processes_that_fight_for_a_key_lose_no_line(tmp_path: Path) -> None:
    """Real processes claiming one key at once: every append that returned is in the file, once, whole."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from datetime import UTC\n"
        "from session.errors import Fenced\n"
        "from session.store.store import Store\n"
        "from tests.session.nursery import KEY, lines\n"
        "async def main(name):\n"
        "    store = Store(Path(sys.argv[1]), zone=UTC)\n"
        "    done = 0\n"
        "    while done < 30:\n"
        "        async with store.open(KEY) as session:\n"
        "            try:\n"
        "                await session.append(lines(f'{name}{done}'))\n"
        "            except Fenced:\n"
        "                continue\n"
        "        done += 1\n"
        "    await store.aclose()\n"
        "asyncio.run(main(sys.argv[2]))\n"
    )
    fighters = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path), name)
        for name in "ab"
    ]

    assert [await fighter.wait() for fighter in fighters] == [0, 0]

    found = ids(tmp_path / "sessions" / "telegram_1.jsonl")
    for name in "ab":
        assert [id_ for id_ in found if id_.startswith(name)] == [f"{name}{number}" for number in range(30)]


@pytest.mark.parametrize("text", ["", "garbage", "[]", '{"v": 1}', '{"v": 1, "epoch": "x"}', "\0" * 100])
async def test_broken_lock_is_claimed_anew(tmp_path: Path, text: str) -> None:
    """A lock file that says nothing usable stops nobody."""
    path = tmp_path / "state" / "keys" / "telegram_1.lock"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    store = open_store(tmp_path)

    async with store.open(KEY) as session:
        await session.append(lines("one"))

    assert json.loads(path.read_text())["key"] == KEY
    await store.aclose()


async def test_waiting_for_a_lock_holds_up_no_other_key(nursery: Nursery, tmp_path: Path) -> None:
    """While one key waits for a frozen holder, appends of others go on; a cancelled wait ends at once."""
    furnish(tmp_path, "append")
    steps = nursery.run("append", tmp_path)["steps"]
    furnish(tmp_path, "append")
    assert nursery.run("append", tmp_path, at=steps.index("write"))["stopped"]
    store = open_store(tmp_path, freeze_s=3600)

    async def blocked() -> None:
        async with store.open(KEY):
            pass

    waiting = asyncio.ensure_future(blocked())
    for number in range(20):
        async with asyncio.timeout(60), store.open(f"cli:{number}") as session:  # type: ignore[arg-type]
            await session.append(lines("other"))
    assert not waiting.done()
    waiting.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert nursery.wake()["status"] == DONE
    await store.aclose()
