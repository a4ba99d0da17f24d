"""Who works on a workspace: daemons share a lock while they live, a change of the form has it alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import durable
from gateway.errors import StateInUse

FILE: Final = "workspace.lock"
# Others that start beside change small files, in a moment.
WAIT_S: Final = 30.0
_POLL_S: Final = 0.02
# The processes that work on the workspace by their own account, in words such as "pid 12".
Beside = Callable[[], Sequence[str]]


@contextlib.contextmanager
def lock_file(state: Path) -> Iterator[int]:
    """Open the lock file, made where there is none; leaving it frees the lock.

    Raises:
        OSError: it cannot be opened.
    """
    durable.make_folder(state)
    fd = durable.open_private(state / FILE)
    try:
        yield fd
    finally:
        os.close(fd)


def share(fd: int, *, wait_s: float = WAIT_S) -> None:
    """Work on the workspace beside others, until the lock file is closed.

    Raises:
        StateInUse: its form was being changed all the time.
    """
    until = time.monotonic() + wait_s
    while not durable.try_lock(fd, shared=True):
        if time.monotonic() >= until:
            raise StateInUse(
                "another process is converting the workspace and does not finish",
                hint=f"check the process that locks state/{FILE}, then start again",
            )
        time.sleep(_POLL_S)


def alone(fd: int, beside: Beside, *, why: str, wait_s: float = WAIT_S, tolerant: bool = False) -> bool:
    """Keep all others out until the lock is shared or its file closed; False: it had to wait for others.

    Args:
        fd: the open lock file.
        wait_s: how long others that are no daemons yet, or no more, are waited for.
        beside: names the processes that work here; those of versions without the lock have no other sign.
        why: what all others have to end for.
        tolerant: whether those without the lock may go on meanwhile.

    Raises:
        StateInUse: others work on the workspace.
    """
    until, waited = time.monotonic() + wait_s, False
    while not durable.try_lock(fd):
        if durable.try_lock(fd, shared=True):
            durable.unlock(fd)
            if running := beside():
                raise in_use(running, why)
        waited = True
        if time.monotonic() >= until:
            raise in_use(beside(), why)
        time.sleep(_POLL_S)
    if not tolerant and (running := beside()):
        durable.unlock(fd)
        raise in_use(running, why)
    return not waited


def in_use(running: Sequence[str], why: str) -> StateInUse:
    """Say who has to end, and what for."""
    who = ", ".join(running) if running else "another process"
    return StateInUse(
        f"{why}, but {who} is using it", hint="stop all processes of the workspace, then run this again"
    )
