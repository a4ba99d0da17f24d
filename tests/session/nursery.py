"""A process that runs store operations in children which stop or kill themselves at a chosen system call.

Reads one JSON request a line and answers with one JSON line:
``{"do": "run", "op", "at", "signal", "workspace"}``, if wanted with ``owner`` and ``who``, is answered by
``{"stopped": bool, "status": int, "steps": [...]}``;
``{"do": "wake"}`` lets the stopped child go on and answers the same.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from session.errors import Fenced, StoreError
from session.store import rollover
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line

KEY = SessionKey("telegram:1")
AT = "2026-03-01T10:00:00.000001+00:00"
NOW, LONG_AGO = datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 2, 1, 12, tzinfo=UTC)
# So many long entries are more than a journal keeps of what is old.
OVERGROWN = 8
DONE, FENCED, REFUSED = 0, 3, 4
STEPS = ("open", "write", "pwrite", "fdatasync", "fsync", "ftruncate", "rename", "link", "unlink", "mkdir")
MORE_STEPS = ("rmdir", "sendfile", "close", "fchmod")


class Trap:
    """Counts the system calls that change something, and strikes before the chosen one."""

    def __init__(self, at: int, number: int) -> None:
        self.at = at
        self.number = number
        self.steps: list[str] = []
        self.armed = False

    def install(self) -> None:
        for name in STEPS + MORE_STEPS:
            setattr(os, name, self._wrap(name, getattr(os, name)))
        fcntl.flock = self._wrap("flock", fcntl.flock)

    def _wrap(self, name: str, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.armed:
                if len(self.steps) == self.at:
                    # This thread goes no step further.
                    signal.pthread_kill(threading.get_ident(), self.number)
                self.steps.append(name)
            return call(*args, **kwargs)

        return wrapped


def lines(who: str) -> list[dict[str, Any]]:
    return [
        make_line("user", f"question of {who}", AT, message_id=who),
        make_line("assistant", f"answer of {who}", AT, message_id=who, final=True),
    ]


async def child(op: str, workspace: Path, trap: Trap, *, owner: str = "", who: str = "child") -> None:
    now = LONG_AGO if op == "rewrite" else NOW

    def clock() -> datetime:
        return now

    store = Store(workspace, zone=UTC, clock=clock, owner=owner)
    # The claim itself is what may be struck.
    trap.armed = op == "claim"
    async with store.open(KEY) as session:
        first = session.session_id
        if op == "reopen":
            await session.end()
            # Two may do so, each with a turn of its own.
            await session.append(lines("middle" if who == "child" else f"middle-{who}"))
        for number in range(OVERGROWN if op == "rewrite" else 0):
            await session.journal.conclude(f"long-{number}", "command", text="x" * 20_000)
        now, trap.armed = NOW, True
        await OPS[op](store, session, who if OPS[op] in (_append, _journal) else first)
    trap.armed = False
    await store.aclose()


async def _append(store: Store, session: Session, who: str) -> None:
    await session.append(lines(who))


async def _nothing(store: Store, session: Session, first: str) -> None:
    pass


async def _checkpoint(store: Store, session: Session, first: str) -> None:
    await session.checkpoint(metadata={"name": "child"}, last_consolidated=1)


async def _compact(store: Store, session: Session, first: str) -> None:
    await session.append_if([make_line("system", "S", AT, kind="compact", kept=1)], lambda _: True)


async def _end(store: Store, session: Session, first: str) -> None:
    await session.end()


async def _close(store: Store, session: Session, first: str) -> None:
    await session.change(lambda *writers: rollover.close(*writers, of=None))


async def _reopen(store: Store, session: Session, first: str) -> None:
    await session.change(lambda *writers: rollover.reopen(*writers, session_id=first))


async def _journal(store: Store, session: Session, who: str) -> None:
    await session.journal.conclude(who, "command", text=f"done by {who}")


async def _clear(store: Store, session: Session, first: str) -> None:
    await store.clear(KEY)


async def _everything(store: Store, session: Session, first: str) -> None:
    await store.clear(KEY, everything=True)


Op = Callable[[Store, Session, str], Awaitable[None]]
OPS: dict[str, Op] = {
    "append": _append,
    "create": _append,
    "repair": _append,
    "torn": _append,
    "claim": _nothing,
    "checkpoint": _checkpoint,
    "compact": _compact,
    "end": _end,
    "close": _close,
    "reopen": _reopen,
    "journal": _journal,
    "rewrite": _journal,
    "clear": _clear,
    "everything": _everything,
}


def run_child(request: dict[str, Any], report: int) -> int:
    # Stdout is for the answers.
    os.dup2(2, 1)
    trap = Trap(request["at"], request["signal"])
    trap.install()
    code = DONE
    try:
        told = {name: request[name] for name in ("owner", "who") if name in request}
        asyncio.run(child(request["op"], Path(request["workspace"]), trap, **told))
    except Fenced:
        code = FENCED
    except StoreError:
        code = REFUSED
    trap.armed = False
    os.write(report, json.dumps(trap.steps).encode())
    return code


def watch(pid: int, report: int) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"stopped": True, "status": -1, "steps": []}
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    steps = os.read(report, 2**20)
    return {"stopped": False, "status": code, "steps": json.loads(steps) if steps else []}


def main() -> None:
    pid, report = 0, -1
    for raw in sys.stdin:
        request = json.loads(raw)
        if request["do"] == "run":
            report, theirs = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = run_child(request, theirs)
                finally:
                    os._exit(code)
            os.close(theirs)
        else:
            os.kill(pid, signal.SIGCONT)
        answer = watch(pid, report)
        if not answer["stopped"]:
            os.close(report)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
