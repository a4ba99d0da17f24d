"""Guards ``state/``: who works on it, whether this version reads it; moves this machine's indexes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import durable
from gateway.errors import ConfigError, EarlierState, StateInUse
from session.disk import local_files
from session.disk.local_files import Home, homes_of, indexes_in, note, note_of
from session.store.state import workspace_state

LOCK: Final = "workspace.lock"
# Others that start beside change small files, in a moment.
WAIT_S: Final = 30.0
_POLL_S: Final = 0.02
# Each development version before 0.1.0 wrote one of these, and no later one does.
_EARLIER: Final = (
    *("workspace.json", "queue.db", "delivery-*.db", "deliveries", "keys/*.log", "usage", "budget.json"),
    *("pairing.json", "telegram.json"),
)
# Where a reset leaves the former folder, beside ``state``.
_FORMER: Final = "state-before-reset-{:%Y%m%dT%H%M%SZ}"
# The processes that work on the workspace by their own account, in words such as "pid 12".
Beside = Callable[[], Sequence[str]]


def check(state: Path) -> None:
    """Refuse a folder of an earlier development version.

    Raises:
        EarlierState: with the cure; nothing was touched.
    """
    found = next((path for name in _EARLIER for path in state.glob(name)), None)
    if found is not None:
        raise EarlierState(
            f"{state} was written by an earlier development version (it holds {found.name})",
            hint="chat-gateway run --reset-state moves it aside and starts with an empty queue; "
            "transcripts, memory and jobs stay",
        )


def reset(workspace: Path, beside: Beside) -> Path | None:
    """Move the state folder aside, durable; return where it lies now. None: there was none.

    Raises:
        StateInUse: others work on the workspace.
        OSError: the disk refused.
    """
    state = workspace / "state"
    if not state.is_dir():
        return None
    former = workspace / _FORMER.format(durable.now())
    with lock_file(state) as lock:
        alone(lock, beside, why=f"--reset-state moves {state} aside", wait_s=0.0)
        _bring_lines_home(state)
        state.rename(former)
        durable.sync_folder(workspace)
    return former


def _bring_lines_home(state: Path) -> None:
    """Replay what a crash left of transcripts, as far as the database can be read: transcripts stay."""
    if (state / durable.STATE_FILE).exists():
        database = workspace_state(state).database
        with contextlib.suppress(durable.HintedError, OSError, sqlite3.Error):
            try:
                database.open()
            finally:
                database.close()


@contextlib.contextmanager
def entered(state: Path) -> Iterator[None]:
    """Hold a shared lock on the folder while a gateway works on it.

    Raises:
        EarlierState: an earlier development version wrote it; not even a lock was made.
        StateInUse: another process keeps it to itself.
        OSError: the lock file cannot be opened.
    """
    check(state)
    with lock_file(state) as lock:
        share(lock)
        yield


@contextlib.contextmanager
def lock_file(state: Path) -> Iterator[int]:
    """Open the lock file, made where there is none; leaving it frees the lock.

    Raises:
        OSError: it cannot be opened.
    """
    durable.make_folder(state)
    fd = durable.open_private(state / LOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def share(fd: int, *, wait_s: float = WAIT_S) -> None:
    """Work on the workspace beside others, until the lock file is closed.

    Raises:
        StateInUse: another process kept it to itself all the time.
    """
    until = durable.monotonic() + wait_s
    while not durable.try_lock(fd, shared=True):
        if durable.monotonic() >= until:
            raise StateInUse(
                "another process is moving files of the workspace and has not finished",
                hint=f"check the process that locks state/{LOCK}, then start again",
            )
        durable.pause(_POLL_S)


def alone(fd: int, beside: Beside, *, why: str, wait_s: float = WAIT_S) -> None:
    """Keep all others out until the lock is shared or its file closed.

    Args:
        fd: the open lock file.
        beside: names the processes that work here.
        why: what all others have to end for.
        wait_s: how long others that are no daemons yet, or no more, are waited for.

    Raises:
        StateInUse: others work on the workspace.
    """
    until = durable.monotonic() + wait_s
    while not durable.try_lock(fd):
        if durable.try_lock(fd, shared=True):
            durable.unlock(fd)
            if running := beside():
                raise in_use(running, why)
        if durable.monotonic() >= until:
            raise in_use(beside(), why)
        durable.pause(_POLL_S)
    if running := beside():
        durable.unlock(fd)
        raise in_use(running, why)


def in_use(running: Sequence[str], why: str) -> StateInUse:
    """Say who has to end, and what for."""
    who = ", ".join(running) if running else "another process"
    return StateInUse(
        f"{why}, but {who} is using it", hint="stop all processes of the workspace, then run this again"
    )


LOCAL_LOCK: Final = "local.lock"
# Notes of machines, or of containers, that came and went; one in use is written anew by the next start.
HOMES_MAX: Final = 100


def settle_indexes(
    workspace: Path,
    wanted: Path | None,
    *,
    beside: Beside,
    wait_s: float = WAIT_S,
) -> None:
    """Have this machine's indexes where they are wanted, for a process that is about to work on them.

    Args:
        workspace: it may be new.
        wanted: the folder of ``state.local_dir``; None: in the workspace.
        beside: names the other processes that work here.
        wait_s: how long another process that does the same is waited for.

    Raises:
        StateInUse: they are in another place, and others work on them.
        ConfigError: they are wanted where they cannot be.
        StoreError, OSError: the disk refused; call it again.
    """
    state, real = workspace / "state", os.path.realpath(workspace)
    if wanted is None and not (state / local_files.FOLDER).is_dir():
        return
    # The configuration knows of no links.
    if wanted is not None and (words := local_files.overlap(Path(real), Path(os.path.realpath(wanted)))):
        raise ConfigError([f"state.local_dir: {words}"])
    durable.make_folder(state)
    # Processes of one machine that start together would each make a folder.
    with durable.locked(state / LOCAL_LOCK, wait_s=wait_s):
        homes = [home for home in homes_of(state) if home.here]
        if wanted is None:
            if not homes:
                return
        elif [(Path(home.folder), home.workspace) for home in homes] == [(wanted, real)]:
            return
        with lock_file(state) as lock:
            why = f"state.local_dir moves the indexes of {workspace}"
            alone(lock, beside, why=why, wait_s=wait_s)
            kept = [home for home in homes if _is_kept(state, home, wanted, real)]
            if wanted is not None:
                _begin(state, kept[0] if kept else _new(wanted), real)


def _is_kept(state: Path, home: Home, wanted: Path | None, real: str) -> bool:
    """Say whether a home of this machine is the one that is wanted; else remove it with its note."""
    if Path(home.folder) == wanted and not _is_copied(home, Path(real)):
        return True
    if not _is_copied(home, Path(real)):
        shutil.rmtree(home.path)
        durable.sync_folder(Path(home.folder))
    durable.discard(note_of(state, home.id))
    durable.sync_folder(state / local_files.FOLDER)
    return False


def _is_copied(home: Home, workspace: Path) -> bool:
    """Say whether the workspace that made a home is still where it was, beside this one."""
    theirs, ours = (note_of(each / "state", home.id) for each in (Path(home.workspace), workspace))
    # One folder may be mounted in two places.
    return theirs.exists() and not theirs.samefile(ours)


def _new(wanted: Path) -> Home:
    home = Home(durable.new_id(), str(wanted), "", socket.gethostname())
    try:
        durable.make_folder(home.path)
    except OSError as error:
        cause = f"state.local_dir: {wanted} cannot be used: {error.strerror}"
        cure = "create it, writable only for the gateway's user, or choose another folder of this machine"
        raise ConfigError([cause], hint=cure) from error
    return home


def _begin(state: Path, home: Home, real: str) -> None:
    """Note which home is used from now on, and delete the indexes in the workspace."""
    note(state, replace(home, workspace=real))
    for path in indexes_in(state):
        durable.discard(path)
    others = [each for each in homes_of(state) if not each.here]
    for each in others[:-HOMES_MAX]:
        durable.discard(note_of(state, each.id))
