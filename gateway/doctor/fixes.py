"""Mends what needs no person's decision, beside a running daemon as well; what is mended stays mended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from durable import make_folder
from gateway.app.daemons import DaemonRegistry
from gateway.config.settings import Settings
from gateway.doctor import cron, owners
from gateway.errors import GatewayError
from session.disk.layout import Layout
from session.errors import SessionError
from session.kept import checking, leftovers
from session.store.store import Store

# What the gateway alone writes; what tools and people put into the two others keeps its mode.
PRIVATE: Final = ("state", "sessions", "memory", "cron")
_SHARED: Final = ("media", "files")
_NEEDED: Final = ("sessions", "memory", "state")
_NAMED: Final = 3
_AS_IT_IS: Final = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


def fix(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what was mended, a line each, with nothing; or what could not be, with its cure."""
    workspace = settings.workspace
    if not workspace.is_dir():
        return
    for name, mend in _FIXES.items():
        try:
            for line in mend(settings):
                yield f"{name}: {line}", ""
        except OSError as error:
            where = error.filename or workspace
            # Root itself meets other refusals: a file in the place of a folder, a disk that only reads.
            cure = "run it as root" if isinstance(error, PermissionError) else f"check {where}"
            yield f"{name} of {workspace} were not changed: {where}: {error.strerror}", cure
        except (GatewayError, SessionError) as error:
            yield f"{name}: {error}", error.hint or "chat-gateway doctor"


def _owners(settings: Settings) -> Iterator[str]:
    if given := owners.mend(settings.workspace):
        name = owners.user_of(settings.workspace).name
        yield f"{given} files and folders now belong to {name} again"


def _permissions(settings: Settings) -> Iterator[str]:
    changed = list(_opened_or_shut(settings.workspace))
    if changed:
        yield f"now readable and writable only by the owner: {_names(changed)}"


def _opened_or_shut(workspace: Path) -> Iterator[str]:
    for name in (".", *PRIVATE, *_SHARED):
        if (workspace / name).is_dir() and _set(workspace / name, stat.S_IRWXU):
            yield name
    for name in PRIVATE:
        # From the top, since what is below a folder that is shut cannot be seen before.
        for parent, folders, files in os.walk(workspace / name):
            for each in sorted(folders):
                if _set(Path(parent) / each, stat.S_IRWXU):
                    yield str((Path(parent) / each).relative_to(workspace))
            for each in sorted(files):
                if _set(Path(parent) / each, stat.S_IRUSR | stat.S_IWUSR):
                    yield str((Path(parent) / each).relative_to(workspace))


def _set(path: Path, wanted: int) -> bool:
    """Give a file or folder to its owner alone; say whether that was needed. Links and second names stay."""
    try:
        fd = os.open(path, _AS_IT_IS)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        # The other name of a file may lie outside of the workspace.
        plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not (plain or stat.S_ISDIR(found.st_mode)) or (mode & wanted == wanted and not mode & 0o077):
            return False
        # By the number of what is open: by its name it might be another one by now.
        Path(f"/proc/self/fd/{fd}").chmod((mode | wanted) & ~0o077)
        return True
    finally:
        os.close(fd)


def _folders(settings: Settings) -> Iterator[str]:
    for name in _NEEDED:
        if not os.path.lexists(settings.workspace / name):
            make_folder(settings.workspace / name)
            yield f"created {name}"


def _daemons(settings: Settings) -> Iterator[str]:
    if gone := DaemonRegistry(settings.workspace).forget_gone():
        yield f"removed crashed processes from state/daemon.json: {gone}"


def _leftovers(settings: Settings) -> Iterator[str]:
    if gone := leftovers.remove_leftovers(Layout(settings.workspace)):
        yield f"removed {_names([str(path.relative_to(settings.workspace)) for path in gone])}"


def _damage(settings: Settings) -> Iterator[str]:
    for row in (*asyncio.run(_repaired(settings)), *cron.damaged_changes(settings.workspace, repair=True)):
        if row["repaired"]:
            yield f"{row['file']}: {row['problem']}; repaired"


async def _repaired(settings: Settings) -> list[checking.Row]:
    async with contextlib.aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        return await checking.verify(store, repair=True)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_FIXES: Final[dict[str, Callable[[Settings], Iterator[str]]]] = {
    "owners": _owners,
    "permissions": _permissions,
    "folders": _folders,
    "daemons": _daemons,
    "leftovers": _leftovers,
    "damage": _damage,
}
