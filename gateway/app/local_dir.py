"""Brings a machine's own files to where ``state.local_dir`` wants them, at a start, with nobody beside.

``session.disk.local_files`` says in which steps. A kill between any two leaves the files of one place in use,
whole, and a note from which the next start goes on. The notes alone decide where files are: whoever looks
before a start has moved them finds them where they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

import durable
from gateway.app import state_folder
from gateway.errors import ConfigError, GatewayError
from session.disk import local_files
from session.disk.local_files import DERIVED, KEPT, Home, files_in, homes_of, note, note_of

log = structlog.get_logger("workspace")

LOCK: Final = "local.lock"
# Notes of machines, or of containers, that came and went; one in use is written anew by the next start.
HOMES_MAX: Final = 100
At = Callable[[str], None]


def settle(
    workspace: Path,
    wanted: Path | None,
    *,
    beside: state_folder.Beside,
    at: At = lambda _: None,
    wait_s: float = state_folder.WAIT_S,
) -> None:
    """Have this machine's files where they are wanted, for a process that is about to work on them.

    Args:
        workspace: it may be new.
        wanted: the folder of ``state.local_dir``; None: in the workspace.
        beside: names the other processes that work here.
        at: called with the name of each instant, so that a test can end the process right there.
        wait_s: how long another process that moves them is waited for.

    Raises:
        StateInUse: they have to be moved, and others work on them.
        ConfigError: they are wanted where they cannot be, or lie where they are not wanted.
        GatewayError: one of them is damaged.
        StoreError, OSError: the disk refused; call it again.
    """
    state = workspace / "state"
    if wanted is None and not (state / local_files.FOLDER).is_dir():
        return
    durable.make_folder(state)
    move = _Move(workspace, wanted, at=at)
    # Processes of one machine that start together would each make a folder.
    with durable.locked(state / LOCK, wait_s=wait_s):
        if move.is_done():
            return
        with state_folder.lock_file(state) as lock:
            why = f"state.local_dir moves files of {workspace}"
            if move.must_be_alone():
                state_folder.alone(lock, beside, why=why, wait_s=wait_s)
            move.run()


def check(workspace: Path, wanted: Path | None) -> None:
    """Refuse what ``settle`` would refuse, for a verb that moves nothing.

    Raises:
        ConfigError: files of this machine lie where they are not looked for.
        StoreError: it cannot be told.
    """
    if (workspace / "state" / local_files.FOLDER).is_dir():
        _Move(workspace, wanted, at=lambda _: None).check()


class _Move:
    """What a start has to do to the files of one workspace."""

    def __init__(self, workspace: Path, wanted: Path | None, *, at: At) -> None:
        self._state = workspace / "state"
        self._real = os.path.realpath(workspace)
        self._wanted = wanted
        self._at = at

    def is_done(self) -> bool:
        """Say whether all is as it is wanted. Raises ConfigError where it cannot be."""
        self.check()
        home = self._home()
        if self._wanted is None:
            return home is None and self._unfinished() is None
        if home is None or not self._is_wanted(home):
            return False
        return not (
            self._unfinished() is not None or home.workspace != self._real or any(files_in(self._state))
        )

    def must_be_alone(self) -> bool:
        """Say whether files that others may use will be touched."""
        home = self._home()
        moves = home is not None and not self._is_wanted(home)
        return moves or any(files_in(self._state)) or self._unfinished() is not None

    def run(self) -> None:
        """Do it."""
        while (left := self._unfinished()) is not None:
            self._finish(left)
        home = self._home()
        if self._wanted is None:
            if home is not None:
                self._leave(home)
            return
        if home is None or not self._is_wanted(home):
            self._arrive(home)
        else:
            self._gather(replace(home, workspace=self._real))
        self._forget_old()

    # -- what there is -----------------------------------------------------------------------------

    def _home(self) -> Home | None:
        """Return the note of where this machine's files are; None: in the workspace."""
        place = local_files.local_state(self._state)
        return next((home for home in homes_of(self._state) if home.path == place), None)

    def _is_wanted(self, home: Home) -> bool:
        return self._wanted is not None and Path(home.folder) == self._wanted

    def _unfinished(self) -> Home | None:
        host = socket.gethostname()
        # Of one that was not begun to be filled, or is emptied, there may be nothing but the note.
        begun = (home for home in homes_of(self._state) if home.phase)
        return next((home for home in begun if home.here or (home.host == host and not home.counts)), None)

    def check(self) -> None:
        """Refuse what would hide files that somebody's messages are in. Raises ConfigError."""
        if self._wanted is not None:
            # The configuration knows of no links.
            words = local_files.overlap(Path(self._real), Path(os.path.realpath(self._wanted)))
            if words:
                raise ConfigError([f"state.local_dir: {words}"])
        homes = homes_of(self._state)
        away = [home for home in homes if not home.here and home.counts]
        # Who has a folder of its own loses nothing with another machine's files.
        if away and self._wanted is None:
            raise _elsewhere(self._state, away[-1])
        for home in homes:
            if home.here and home.workspace != self._real and _is_copied(home, Path(self._real)):
                raise ConfigError(
                    [f"{self._real} is a copy of {home.workspace}, which the files in {home.path} belong to"],
                    hint=f"remove {note_of(self._state, home.id)}, so that the copy starts without them; or "
                    f"restore a backup instead, which contains them",
                )
        self._check_both(self._home())

    def _check_both(self, home: Home | None) -> None:
        if home is None or home.phase:
            return
        for name in files_in(self._state, KEPT):
            ours, theirs = self._state / name, home.path / name
            if theirs.exists() and _digest(ours) != _digest(theirs):
                raise ConfigError(
                    [f"{name} exists twice: {ours} and {theirs}"],
                    hint=f"move one of them away; {theirs} has been in use since state.local_dir was set",
                )

    # -- the moves ---------------------------------------------------------------------------------

    def _arrive(self, source: Home | None) -> None:
        """Move all files to a new folder of ``local_dir``."""
        assert self._wanted is not None
        home = Home(
            id=durable.new_id(),
            folder=str(self._wanted),
            workspace=self._real,
            host=socket.gethostname(),
            phase="arriving",
            source=source.id if source is not None else "",
        )
        note(self._state, home)
        self._at("arriving")
        try:
            durable.make_folder(home.path)
        except OSError as error:
            durable.discard(note_of(self._state, home.id))
            cause = f"state.local_dir: {self._wanted} cannot be used: {error.strerror}"
            cure = "create it, writable only for the gateway's user, or choose another folder of this machine"
            raise ConfigError([cause], hint=cure) from error
        self._at("made")
        self._take_over(home, source.path if source is not None else self._state)

    def _gather(self, home: Home) -> None:
        """Move files that lie in the workspace to the folder that is in use."""
        self._take_over(home, self._state)

    def _take_over(self, home: Home, place: Path) -> None:
        stale = dict(self._copied(place, home.path))
        log.info("files.moved", to=str(home.path), files=len(stale))
        # From here on the files of the folder are the ones in use.
        home = replace(home, phase="clearing", stale=stale)
        note(self._state, home)
        self._at("clearing")
        self._finish(home)

    def _leave(self, home: Home) -> None:
        """Move all files back into the workspace."""
        home = replace(home, phase="leaving", stale=dict.fromkeys(files_in(home.path), ""))
        note(self._state, home)
        self._at("leaving")
        for _ in self._copied(home.path, self._state):
            pass
        log.info("files.moved", to=str(self._state), files=len(home.stale))
        home = replace(home, phase="emptied", stale={})
        note(self._state, home)
        self._at("emptied")
        self._finish(home)

    def _copied(self, source: Path, target: Path) -> Iterator[tuple[str, str]]:
        """Copy all files from place to place; yield the name of each, and the SHA-256 of what it was."""
        for name in files_in(source):
            path, copy = source / name, target / name
            try:
                durable.settle_copy(path)
            except durable.Damaged as error:
                if name not in files_in(source, DERIVED):
                    cure = "restore a backup of it, or move it away: chat-gateway doctor"
                    raise GatewayError(f"{path} cannot be moved: {error}", hint=cure) from error
            except OSError as error:
                raise GatewayError(
                    f"{path} cannot be moved: {error.strerror}",
                    hint="close all programs that use it, then start again",
                ) from error
            else:
                if not copy.exists():
                    _copy(path, copy)
            yield name, _digest(path)
            self._at("copied")

    def _finish(self, home: Home) -> None:
        """Take away what a move has left, or a kill of it; in the end its note says nothing of it."""
        match home.phase:
            case "clearing":
                source = next((each for each in homes_of(self._state) if each.id == home.source), None)
                if source is not None:
                    self._remove(source)
                else:
                    self._clear(self._state, home.stale)
                note(self._state, replace(home, phase="", source="", stale={}))
            case "leaving":
                self._clear(self._state, home.stale)
                note(self._state, replace(home, phase="", stale={}))
            case _:
                self._remove(home)
        self._at("finished")

    def _clear(self, place: Path, stale: dict[str, str] | object) -> None:
        """Take files away, each if it is still what was copied."""
        assert isinstance(stale, dict)
        for name, digest in stale.items():
            path = place / name
            if path.exists() and digest not in ("", _digest(path)):
                raise ConfigError(
                    [f"{path} has changed since it was moved to state.local_dir"],
                    hint="an older version has used it: move it away, then start again",
                )
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                durable.discard(each)
            self._at("cleared")
        for name in local_files.TREES:
            durable.discard(place / name)
        durable.sync_folder(place)

    def _remove(self, home: Home) -> None:
        """Take a folder away, then its note, without which nobody would find it again."""
        if home.here:
            shutil.rmtree(home.path)
            durable.sync_folder(Path(home.folder))
        self._at("removed")
        durable.discard(note_of(self._state, home.id))
        durable.sync_folder(self._state / local_files.FOLDER)

    def _forget_old(self) -> None:
        homes = [home for home in homes_of(self._state) if not home.here]
        for home in [home for home in homes if home.counts][:-HOMES_MAX]:
            durable.discard(note_of(self._state, home.id))


def _elsewhere(state: Path, home: Home) -> ConfigError:
    where = f"on {home.host or 'another machine'}, in {home.path}"
    cure = (
        f"set state.local_dir on each machine that shares the workspace (there: {home.folder}), and mount"
        f" its disk; if that machine is gone for good: rm {note_of(state, home.id)}"
    )
    return ConfigError([f"send logs of this workspace: {where}, but state.local_dir is not set"], hint=cure)


def _is_copied(home: Home, workspace: Path) -> bool:
    """Say whether the workspace that made a home is still where it was, beside this one."""
    theirs, ours = (note_of(each / "state", home.id) for each in (Path(home.workspace), workspace))
    # One folder may be mounted in two places.
    return theirs.exists() and not theirs.samefile(ours)


def _copy(path: Path, target: Path) -> None:
    durable.make_folder(target.parent)
    temp = target.with_name(f".{target.name}.{durable.new_id()}.tmp")
    try:
        with durable.new_file(temp) as fd, path.open("rb") as source:
            while block := source.read(2**20):
                durable.write_all(fd, block)
        durable.settle(temp, target)
    except BaseException:
        durable.discard(temp)
        raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
