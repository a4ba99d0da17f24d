"""Writes two conversations in children that die at each instant of a commit and of a flush.

``python -m tests.session.commit_victim DIR``: child n works in ``DIR-n`` and is killed at its n-th instant.
The file ``done`` there says what was reported done. Prints how many children there were.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import durable
from durable import state_database, state_writer
from session.store.state import workspace_state
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp

# The first is renewed in the middle of a turn, the second ends there.
HEAD, NEW = SessionKey("web:head"), SessionKey("web:new")


def die_at(left: int, workspace: Path) -> object:
    """Have this process die at its ``left``-th instant, as long as what is returned is kept."""

    def step(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            step(f"before {name}")
            result = inner(*args, **more)
            step(f"after {name}")
            return result

        return call

    # A kill takes nothing that the system was given.
    os.fsync = os.fdatasync = lambda fd: None
    state = workspace_state(workspace / "state")
    state.at = step
    state_database.append_whole = around("append", state_database.append_whole)
    state_database.sync_all = state_writer.sync_all = around("sync", state_database.sync_all)
    os.rename = around("rename", os.rename)
    return state


async def work(workspace: Path) -> None:
    with (workspace / "done").open("ab", buffering=0) as done:
        store = Store(workspace, zone=UTC)
        # The writer that ``die_at`` prepared.
        state = workspace_state(workspace / "state")

        async def say(session: Session, first: int, *roles: str, id_: str) -> None:
            now = stamp(durable.now(), UTC)
            await session.append(
                [
                    make_line(role, f"{number}", now, message_id=id_, final=role == "assistant" or None)
                    for number, role in enumerate(roles, first)
                ]
            )
            done.write(b"".join(b"%b %d\n" % (session.key.encode(), first + at) for at in range(len(roles))))

        async def chat(key: SessionKey) -> None:
            async with store.open(key) as session:
                await say(session, 0, "user", "assistant", id_="a")
                await say(session, 2, "user", id_="b")
                await session.journal.conclude("command", "silent")
                done.write(b"%b known\n" % key.encode())
                if key == NEW:
                    await session.end()
                else:
                    await session.checkpoint(metadata={"name": "a longer header"})
                await say(session, 3, "assistant", id_="b")
                await state.flush()
                await say(session, 4, "user", "assistant", id_="c")

        await asyncio.gather(chat(HEAD), chat(NEW))
        await store.aclose()


def main(folder: Path) -> int:
    number = 0
    while True:
        number += 1
        workspace = folder.with_name(f"{folder.name}-{number}")
        workspace.mkdir()
        child = os.fork()
        if child == 0:
            state = die_at(number, workspace)
            asyncio.run(work(workspace))
            del state
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return number
        assert code == -signal.SIGKILL, "the work failed by itself"


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
