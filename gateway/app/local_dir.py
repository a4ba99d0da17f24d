"""Brings the indexes of this machine to where ``state.local_dir`` wants them, at a start, with nobody beside.

Nothing is copied: what lies elsewhere is deleted, and made anew where it is wanted.
"""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

import durable
from gateway.app import state_folder
from gateway.errors import ConfigError
from session.disk import local_files
from session.disk.local_files import Home, homes_of, indexes_in, note, note_of

LOCK: Final = "local.lock"
# Notes of machines, or of containers, that came and went; one in use is written anew by the next start.
HOMES_MAX: Final = 100


def settle(
    workspace: Path,
    wanted: Path | None,
    *,
    beside: state_folder.Beside,
    wait_s: float = state_folder.WAIT_S,
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
    with durable.locked(state / LOCK, wait_s=wait_s):
        homes = [home for home in homes_of(state) if home.here]
        if wanted is None:
            if not homes:
                return
        elif [(Path(home.folder), home.workspace) for home in homes] == [(wanted, real)]:
            return
        with state_folder.lock_file(state) as lock:
            why = f"state.local_dir moves the indexes of {workspace}"
            state_folder.alone(lock, beside, why=why, wait_s=wait_s)
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
