"""A lease: one holder over all processes, free as soon as its holder is dead."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path

from channels.storage import held, lease
from tests.gateway.embedded_place import files_at_most


async def test_the_second_waits_until_the_first_lets_go(tmp_path: Path) -> None:
    tried = asyncio.Event()
    order: list[str] = []

    async def sleep(_: float) -> None:
        tried.set()
        await asyncio.sleep(0)

    async def second() -> None:
        async with lease(tmp_path, "telegram", sleep=sleep):
            order.append("second")

    async with lease(tmp_path, "telegram"):
        waiting = asyncio.create_task(second())
        await tried.wait()
        order.append("first")
    await waiting

    assert order == ["first", "second"]


async def test_held_says_whether_anybody_has_it_by_name(tmp_path: Path) -> None:
    for _ in range(2):
        assert not held(tmp_path, "telegram")
        async with lease(tmp_path, "telegram"), lease(tmp_path, "discord"):
            assert held(tmp_path, "telegram")
            assert held(tmp_path, "discord")


async def test_two_who_ask_at_once_are_no_holders(tmp_path: Path) -> None:
    async with lease(tmp_path, "telegram"):
        pass
    with (tmp_path / "telegram.lease").open("rb") as asking:
        # The other one does so while it looks.
        fcntl.flock(asking, fcntl.LOCK_SH)

        assert not held(tmp_path, "telegram")


async def test_who_gives_up_waiting_does_not_get_it_later(tmp_path: Path) -> None:
    tried = asyncio.Event()

    async def sleep(_: float) -> None:
        tried.set()
        await asyncio.Event().wait()

    async def second() -> None:
        async with lease(tmp_path, "telegram", sleep=sleep):
            raise AssertionError

    async with lease(tmp_path, "telegram"):
        waiting = asyncio.create_task(second())
        await tried.wait()
        waiting.cancel()
        await asyncio.wait([waiting])

    assert not held(tmp_path, "telegram")


async def test_a_killed_process_leaves_it_free(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.channels.lease_holder", str(tmp_path), "telegram"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    assert held(tmp_path, "telegram")
    tried = asyncio.Event()

    async def sleep(_: float) -> None:
        tried.set()
        await holder.wait()

    async def second() -> None:
        async with lease(tmp_path, "telegram", sleep=sleep):
            assert str(os.getpid()) in (tmp_path / "telegram.lease").read_text()

    waiting = asyncio.create_task(second())
    await tried.wait()
    holder.kill()

    await asyncio.wait_for(waiting, 30)


async def test_a_full_disk_keeps_nobody_from_it(tmp_path: Path) -> None:
    with files_at_most(0):
        async with lease(tmp_path / "state", "telegram"):
            assert held(tmp_path / "state", "telegram")

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/telegram.lease").stat().st_mode & 0o777 == 0o600
