"""What doctor says of a workspace: its folder, who can use it, and what lies in it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import durable
from gateway.app.daemons import DaemonRegistry
from gateway.config import folder, memory_scope
from gateway.config.settings import Settings
from gateway.doctor import cron, machine, owners
from gateway.doctor.finding import LOCAL_S, Check, looked, patient
from session.disk.layout import Layout
from session.disk.state import read_state
from session.kept import checking
from session.kept.erasing import Owed
from session.kept.subject import NoText, check_text
from session.library.library import Library
from session.store.media import media_bytes
from session.store.store import Store

STUCK_S: Final = 30.0
MEDIA_MANY_BYTES: Final = 5 * 2**30
# Gigabytes are read for it.
READ_ALL_S: Final = 900.0
_READ_WHOLE: Final = ("transcripts", "media")
SPARE_MB: Final = 100
# A lock that is held for so long stays held; of many so many are named.
_HELD_S: Final = 1.0
_NAMED: Final = 5

Look = Callable[[Settings], Iterable[Check]]


async def usable(settings: Settings, *, within_s: float = LOCAL_S) -> Check:
    """Say whether the folder answers and can be used; else nothing that lies in it is looked at."""
    place = settings.workspace
    (found,) = await looked("workspace", lambda: [_folder(place)], place, within_s=within_s)
    return found


async def contents(settings: Settings, *, within_s: float = LOCAL_S) -> AsyncIterator[Check]:
    """Look at everything that lies in a workspace, one after the other; nothing is changed."""
    for name, look in _CONTENTS.items():
        limit_s = patient(READ_ALL_S, within_s) if name in _READ_WHOLE else within_s
        for check in await _looked(name, look, settings, limit_s):
            yield check


async def access(settings: Settings, *, within_s: float = LOCAL_S) -> AsyncIterator[Check]:
    """Say whether others can read the workspace, and whether its user can use all of it."""
    for check in await _looked("permissions", _permissions, settings, within_s):
        yield check
    for check in await _looked("owners", _owners, settings, within_s):
        yield check


async def _looked(name: str, look: Look, settings: Settings, within_s: float) -> list[Check]:
    return await looked(name, lambda: look(settings), settings.workspace, within_s=within_s)


def _folder(workspace: Path) -> Check:
    if (blocking := folder.in_the_way(workspace)) is not None:
        return Check("workspace", "fail", f"{blocking} is not a folder", folder.CURE)
    if not os.path.lexists(workspace):
        return Check("workspace", "ok", "does not exist yet; the first start creates it")
    if not os.access(workspace, os.R_OK | os.W_OK | os.X_OK):
        return Check("workspace", "fail", "cannot be written", f"chown -R $USER {workspace}")
    # What the kernel keeps of a folder answers for a server that is away: its names have to be read.
    with os.scandir(workspace) as names:
        next(names, None)
    free = os.statvfs(workspace)
    free_mb = free.f_bavail * free.f_frsize // 2**20
    if free_mb < SPARE_MB:
        return Check(
            "workspace", "warn", f"{free_mb} MB free", "free some space: messages wait while the disk is full"
        )
    return Check("workspace", "ok", f"{free_mb} MB free")


def _permissions(settings: Settings) -> list[Check]:
    open_to_others = []
    for name in (".", "sessions", "memory", "state", "media", "files"):
        path = settings.workspace / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            open_to_others.append(str(path))
    if not open_to_others:
        return [Check("permissions", "ok", "the folders are private")]
    return [
        Check("permissions", "warn", f"others can read {path}", f"chmod -R go= {path}")
        for path in open_to_others
    ]


def _owners(settings: Settings) -> list[Check]:
    level, text, cure = owners.check(settings.workspace)
    return [Check("owners", level, text, cure)]


def _erasures(settings: Settings) -> list[Check]:
    """Name each erasure that was begun and is not whole; a daemon may be at it at this moment."""
    owed = Owed(settings.state)
    found = []
    for subject in owed.left():
        whom = f"--person {subject.name}" if subject.is_person else subject.name
        try:
            check_text(subject.name)
        except NoText as error:
            cure = f"delete state/erasing/{owed.path(subject).name}: no chat can have this key"
            found.append(Check("erasures", "warn", f"an erasure cannot be completed: {error}", cure))
            continue
        text = f"{subject.name}: not everything has been deleted yet"
        cure = f"chat-gateway memory erase {whom} --yes; or restart the gateway"
        found.append(Check("erasures", "warn", text, cure))
    return found or [Check("erasures", "ok", "nothing is left to delete")]


def _machine(settings: Settings) -> list[Check]:
    return [Check(*finding) for finding in machine.check(settings.workspace, settings.local_dir)]


def _memory(settings: Settings) -> list[Check]:
    level, text, cure = memory_scope.check(settings)
    return [Check("memory", level, text, cure)]


def _jobs(settings: Settings) -> list[Check]:
    return [Check("cron", level, text, cure) for level, text, cure in cron.check(settings.workspace)]


def _locks(settings: Settings) -> list[Check]:
    """Say whether a chat's lock stays held, which is held only around a write: its process does not move."""
    stuck = [path for path in (settings.state / "keys").glob("*.lock") if _is_held(path)]
    if stuck:
        durable.pause(_HELD_S)
    stuck = [path for path in stuck if _is_held(path)]
    if stuck:
        names = ", ".join(path.stem for path in stuck[:_NAMED])
        cure = "look for a stopped process: until it goes on or ends, this chat cannot be closed or cleared"
        return [Check("locks", "warn", f"held for over {_HELD_S:g} s: {names}", cure)]
    running = DaemonRegistry(settings.workspace).running()
    who = ", ".join(f"{one.role} is running as process {one.pid}" for one in running)
    return [Check("locks", "ok", who or "the gateway is not running")]


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _clock(settings: Settings) -> list[Check]:
    """A clock that was set back makes ages and retention wrong: compare it with the newest file."""
    newest = max(
        (path.stat().st_mtime for path in (settings.workspace / "sessions").glob("*.jsonl")), default=0.0
    )
    ahead_s = newest - durable.now().timestamp()
    if ahead_s > STUCK_S:
        text = f"a transcript was written {ahead_s:.0f} s in the future"
        return [Check("clock", "warn", text, "set the clock")]
    leapt = read_state(settings.state / "retention.json").get("leapt")
    if leapt:
        text = f"it jumped to {leapt}: retention deletes nothing for a week"
        return [Check("clock", "warn", text, "set the clock, unless it is right now")]
    return [Check("clock", "ok", durable.now().isoformat(timespec="seconds"))]


def _transcripts(settings: Settings) -> list[Check]:
    problems = [*asyncio.run(_verify(settings)), *cron.damaged_changes(settings.workspace)]
    cure = "chat-gateway sessions verify --repair"
    found = [
        Check("transcripts", "warn", f"{row['file']}: {row['problem']}", row.get("cure", cure))
        for row in problems
    ]
    found += _moved_by_nanobot(settings.workspace / ".nanobot" / "workspace-id")
    return found or [Check("transcripts", "ok", "all can be read in full")]


def _moved_by_nanobot(mark: Path) -> Iterator[Check]:
    """Warn where nanobot 0.3.5 opened this workspace: it moves the transcripts into its own store."""
    if mark.is_file():
        store = f"~/.nanobot/sessions/{mark.read_text(errors='replace').strip()[:32]}"
        yield Check(
            "transcripts",
            "warn",
            "nanobot 0.3.5 has opened this workspace and moved the transcripts to its own store",
            f"bring them back with chat-gateway sessions import --from nanobot {store}, then delete {mark}",
        )


async def _verify(settings: Settings) -> list[dict[str, Any]]:
    store = Store(settings.workspace, zone=settings.zone)
    try:
        return await checking.verify(store)
    finally:
        await store.aclose()


def _instructions(settings: Settings) -> Iterator[Check]:
    """Name the playbooks and skills that no model will see."""
    workspace = settings.workspace
    bad = list(Library(workspace).problems())
    if not bad:
        yield Check("instructions", "ok", "all playbooks and skills can be read")
    cure = "correct the lines between --- at its top; see docs/context.md"
    for one in bad:
        text = f"{one.path.relative_to(workspace)} is skipped: {one.problem}"
        yield Check("instructions", "warn", text, cure)


def _media(settings: Settings) -> list[Check]:
    """Say how much people's files take, with a warning from ``MEDIA_MANY_BYTES`` on."""
    size = media_bytes(Layout(settings.workspace))
    text = f"{size / 2**20:.0f} MB in media/"
    if size <= MEDIA_MANY_BYTES:
        return [Check("media", "ok", text)]
    cure = "set session.retention_days, or run chat-gateway sessions clear KEY --everything"
    return [Check("media", "warn", text, cure)]


_CONTENTS: Final[dict[str, Look]] = {
    "machine": _machine,
    "media": _media,
    "locks": _locks,
    "clock": _clock,
    "transcripts": _transcripts,
    "memory": _memory,
    "instructions": _instructions,
    "cron": _jobs,
    "erasures": _erasures,
}
