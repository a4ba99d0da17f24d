"""Brings a backup back: into a folder beside its place, which gets its name once all of it is there."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from typing import IO, Final

import durable
from gateway.app.daemons import DaemonRegistry
from gateway.backup import tar
from gateway.backup.manifest import CONFIG, WORKSPACE, Manifest, unused
from gateway.errors import GatewayError, StateInUse

# Where files of the configuration lie after a restore, for somebody to look at and put in their place.
CONFIG_FOLDER: Final = "config-of-backup"
_BLOCK: Final = 2**20


def restore(backup: Path, workspace: Path) -> Manifest:
    """Make ``workspace`` of a backup; it is there whole, or as it was before.

    A link stays, and what it leads to becomes the workspace.

    Raises:
        StateInUse: a daemon runs on it.
        NoBackup, NewerState: it cannot be brought back.
        GatewayError: something is there already, or its folder cannot take the new one.
        OSError: the disk refused.
    """
    if workspace.is_symlink():
        # A folder cannot be renamed over a link.
        workspace = Path(os.path.realpath(workspace))
    _check(workspace)
    durable.make_folder(workspace.parent)
    _sweep(workspace)
    scratch = workspace.with_name(f".{workspace.name}.restoring-{os.getpid()}")
    durable.make_private(scratch)
    try:
        _as_owner_of(workspace, scratch)
        manifest = extract(backup, scratch)
        # One call for thousands of files: their bytes and names are on disk before the folder has its own.
        os.sync()
        _check(workspace)
        _rename(scratch, workspace)
    except BaseException:
        durable.discard(scratch)
        raise
    durable.sync_folder(workspace.parent)
    return manifest


def extract(backup: Path, folder: Path) -> Manifest:
    """Write the files of a backup below ``folder``, which is empty; nothing is synced.

    Raises:
        NoBackup, NewerState, OSError: as ``tar.read``.
    """
    links: list[tuple[Path, str]] = []
    of_config: set[str] = set()

    def take(name: str, info: tarfile.TarInfo, data: IO[bytes] | None) -> str:
        below = name.removeprefix(WORKSPACE)
        if name.startswith(CONFIG):
            # Some backups have several secrets of one name.
            below = unused(f"{CONFIG_FOLDER}/{name.removeprefix(CONFIG)}", of_config)
            of_config.add(below)
        path = folder / below
        if data is None:
            links.append((path, info.linkname))
            return hashlib.sha256(os.fsencode(info.linkname)).hexdigest()
        _make_parents(folder, path.parent)
        return _write(path, info, data)

    manifest = tar.read(backup, take)
    # Last of all: nothing may be written through one.
    for path, target in links:
        _make_parents(folder, path.parent)
        path.symlink_to(target)
    return manifest


def _write(path: Path, info: tarfile.TarInfo, data: IO[bytes]) -> str:
    digest = hashlib.sha256()
    with durable.new_file(path) as fd:
        while block := data.read(_BLOCK):
            digest.update(block)
            durable.write_all(fd, block)
        os.fchmod(fd, info.mode & 0o777 | 0o600)
        os.utime(fd, (info.mtime, info.mtime))
    return digest.hexdigest()


def _make_parents(top: Path, folder: Path) -> None:
    missing = []
    while folder != top and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        durable.make_private(each)


def _check(workspace: Path) -> None:
    """Refuse a place where something is."""
    if running := DaemonRegistry(workspace).running():
        pids = ", ".join(str(each.pid) for each in running)
        raise StateInUse(
            f"a daemon (pid {pids}) runs on {workspace}",
            hint="stop it, move that folder away, and call this again",
        )
    try:
        is_empty = not any(workspace.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        is_empty = False
    if not is_empty:
        raise GatewayError(
            f"{workspace} is not empty; nothing was changed",
            hint=f"mv {workspace} {workspace}.old, or name another folder by --workspace",
        )


def _sweep(workspace: Path) -> None:
    """Remove what killed restores left beside the workspace."""
    head = f".{workspace.name}.restoring-"
    for scratch in workspace.parent.glob(f"{head}*"):
        pid = scratch.name.removeprefix(head)
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            durable.discard(scratch)


def _as_owner_of(workspace: Path, scratch: Path) -> None:
    """Give the new folder to whom the empty one belongs in whose place it comes, where root restores."""
    if os.geteuid() == 0 and workspace.is_dir():
        found = workspace.stat()
        os.chown(scratch, found.st_uid, found.st_gid)


def _rename(scratch: Path, workspace: Path) -> None:
    try:
        # An empty folder gives way; one in which something is by now does not.
        scratch.rename(workspace)
    except OSError as error:
        raise GatewayError(
            f"{workspace} cannot be put in place: {error.strerror}",
            hint="a mount point cannot be replaced: set workspace to a folder below it",
        ) from error
