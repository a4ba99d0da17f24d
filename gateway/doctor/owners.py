"""Looks whether the user of a workspace can use every file in it, and gives back what others made there."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.app.daemons import DaemonRegistry
from gateway.doctor.finding import Check, Finding

WRITTEN = ("state", "sessions", "memory", "cron", "cron.lock", "media", "files")
# What lies there may be a person's, as long as it can be read.
_ONLY_READ = ("media", "files")
_NAMED = 3
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class User:
    """Who uses a workspace, by number."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        """The name that the machine knows, else the number."""
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(self.uid).pw_name
        return str(self.uid)


@dataclass(frozen=True, slots=True)
class _Barred:
    """What its user cannot use: its name within an open folder, and its path from the workspace on."""

    folder: int
    name: str
    path: Path


def check(workspace: Path) -> Finding:
    """Say which files the user of a workspace cannot use, and how that is mended."""
    if not workspace.is_dir():
        return "ok", "no workspace yet", ""
    user = user_of(workspace)
    barred = [str(each.path) for each in _barred(workspace, user)]
    if not barred:
        return "ok", f"every file can be used by {user.name}", ""
    names = ", ".join(barred[:_NAMED])
    more = f" and {len(barred) - _NAMED} more" if len(barred) > _NAMED else ""
    text = f"{user.name} uses this workspace but cannot access {names}{more}, so messages wait"
    return "fail", text, f"chown -R {user.uid}:{user.gid} {workspace}"


def mend(workspace: Path) -> int:
    """Give what its user cannot use back to him; return how many files and folders that were.

    A file with a second name is left to a person: the other name may lie outside of the workspace.

    Raises:
        PermissionError: only root can.
    """
    if not workspace.is_dir():
        return 0
    user, given = user_of(workspace), 0
    for each in _barred(workspace, user):
        fd = os.open(each.name, _LOOK, dir_fd=each.folder)
        try:
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
                os.fchown(fd, user.uid, user.gid)
                given += 1
        finally:
            os.close(fd)
    return given


def user_of(workspace: Path) -> User:
    """Say who uses a workspace: whoever a daemon runs as that is not root, else the owner of the folder."""
    for daemon in DaemonRegistry(workspace).running():
        with contextlib.suppress(OSError):
            found = Path(f"/proc/{daemon.pid}").stat()
            if found.st_uid != 0:
                return User(found.st_uid, found.st_gid)
    found = workspace.stat()
    return User(found.st_uid, found.st_gid)


def untried(name: str, workspace: Path) -> Check | None:
    """Return what root finds of a sandbox for another user's gateway; None where it can try it itself."""
    user = user_of(workspace) if os.geteuid() == 0 and workspace.is_dir() else User(0, 0)
    if user.uid == 0:
        return None
    text = f"not tested: the gateway runs as {user.name}, and commands of a model never run as root"
    return Check(name, "warn", text, f"sudo -u {user.name} chat-gateway doctor")


def _barred(workspace: Path, user: User) -> Iterator[_Barred]:
    """Name what the user cannot use; root can use everything.

    By open folders: whoever owns the workspace could swap a folder for a link to one of the system's.
    """
    if user.uid == 0:
        return
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _usable(top, ".", user, write=True):
            yield _Barred(top, ".", Path())
        for name in WRITTEN:
            if not _usable(top, name, user, write=True):
                yield _Barred(top, name, Path(name))
            for folder, folders, files, fd in _walk(workspace / name):
                for each in sorted([*folders, *files]):
                    if not _usable(fd, each, user, write=name not in _ONLY_READ):
                        yield _Barred(fd, each, (Path(folder) / each).relative_to(workspace))
    finally:
        os.close(top)


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
    """Walk through a folder as far as this process may; one that is not there is empty."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        yield from os.fwalk(folder)


def _usable(folder: int, name: str, user: User, *, write: bool) -> bool:
    """Say whether a user may do with a file or folder what the gateway does; what is gone is no matter."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    # A person made the link: what it leads to is that person's affair.
    if stat.S_ISLNK(found.st_mode):
        return True
    wanted = 0o4 | (0o2 if write else 0) | (0o1 if stat.S_ISDIR(found.st_mode) else 0)
    mode = found.st_mode
    if found.st_uid == user.uid:
        mode >>= 6
    elif found.st_gid == user.gid:
        mode >>= 3
    return mode & wanted == wanted
