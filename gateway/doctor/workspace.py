"""The checks of a workspace: its folder, its owners, what lies in it; and what ``doctor --fix`` mends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import durable
from channels.cron.jobs import CHANNEL
from channels.cron.jobs_file import Contents, CronFile
from channels.cron.nanobot_jobs import Left
from channels.errors import ChannelError
from channels.storage import held
from durable import make_folder
from gateway.app.daemons import DaemonRegistry
from gateway.config import finding
from gateway.config.agents import check_memory
from gateway.config.settings import Settings
from gateway.doctor import machine
from gateway.doctor.finding import LOCAL_S, Check, Steps, looked, patient
from gateway.errors import GatewayError
from session.disk.layout import Layout
from session.disk.state import read_state
from session.errors import SessionError
from session.kept import checking, leftovers
from session.kept.erasing import Owed
from session.kept.subject import NoText, check_text
from session.library.library import Library
from session.store.media import media_bytes
from session.store.store import Store

MOST_JOBS = 10
JOBS_FILE = "cron/jobs.json"
OVERDUE = timedelta(minutes=5)


def cron_checks(workspace: Path) -> Iterator[Check]:
    """Say whether the file of the jobs is whole, and which jobs cannot run or are late."""
    file = CronFile(workspace)
    try:
        contents = file.read()
    except ChannelError as error:
        yield Check("cron", "fail", str(error), error.hint)
        return
    if contents.fault is not None:
        yield Check("cron", "fail", f"cron/jobs.json: {contents.fault.text}", contents.fault.cure)
    for bad in contents.bad[:MOST_JOBS]:
        name = f"{bad.id}: " if bad.id else ""
        yield Check("cron", "warn", f"{name}{bad.problem}", bad.cure)
    if len(contents.bad) > MOST_JOBS:
        yield Check(
            "cron", "warn", f"{len(contents.bad) - MOST_JOBS} more cannot run", "chat-gateway cron list"
        )
    yield from _open_to_others(file.path)
    for copy in sorted(file.path.parent.glob(f"{file.path.name}.corrupt-*")):
        yield Check(
            "cron",
            "warn",
            f"cron/{copy.name} is the original of a damaged file",
            "check it, then delete it",
        )
    yield _cron_clock(workspace, contents)


async def integrity(store: Store, *, repair: bool = False) -> list[checking.Row]:
    """Return a row for each damaged file of a workspace: for ``doctor``, ``sessions verify`` and backups."""
    rows = await checking.verify(store, repair=repair)
    return [*rows, *await asyncio.to_thread(cron_damage, store.layout.workspace, repair=repair)]


def cron_damage(workspace: Path, *, repair: bool = False) -> list[checking.Row]:
    """Return the rows of the jobs' files; a damaged ``jobs.json`` is left to a person."""
    rows: list[checking.Row] = []
    try:
        if (fault := CronFile(workspace).read().fault) is not None:
            rows.append({"file": JOBS_FILE, "problem": f"{fault.text}; {fault.cure}", "repaired": False})
    except ChannelError as error:
        rows.append({"file": JOBS_FILE, "problem": str(error), "repaired": False})
    left = Left(workspace)
    row: checking.Row = {"file": "cron/action.jsonl", "repaired": False}
    try:
        if not (lines := left.damaged()):
            return rows
        row["problem"] = (
            f"{lines} damaged {'line' if lines == 1 else 'lines'}: changes of jobs were not applied"
        )
        if repair:
            left.mend()
            row["repaired"] = True
    except ChannelError as error:
        row["problem"] = str(error)
    except OSError as error:
        row["problem"] = f"cannot be read or written: {error.strerror}"
    return [*rows, row]


def _open_to_others(path: Path) -> Iterator[Check]:
    for each in (path.parent, path):
        if each.exists() and stat.S_IMODE(each.stat().st_mode) & 0o077:
            yield Check("cron", "warn", f"others can read {each}", f"chmod -R go= {path.parent}")
            return


def _cron_clock(workspace: Path, contents: Contents) -> Check:
    jobs = [job for job in contents.jobs.values() if job.enabled and job.asks]
    count = f"{len(jobs)} job{'s' * (len(jobs) != 1)} scheduled" if jobs else "no jobs"
    if not held(workspace / "state", CHANNEL):
        return Check("cron", "ok", f"{count}; the gateway is not running")
    before = durable.now() - OVERDUE
    late = [job.id for job in jobs if 0 < (job.state_ms("nextRunAtMs") or 0) < before.timestamp() * 1000]
    if not late or contents.fault is not None:
        return Check("cron", "ok", count)
    text = f"{len(late)} job{'s' * (len(late) != 1)} overdue: {', '.join(late[:MOST_JOBS])}"
    return Check("cron", "warn", text, "chat-gateway status shows whether the queue is up")


WRITTEN = ("state", "sessions", "memory", "cron", "cron.lock", "media", "files")
# What lies there may be a person's, as long as it can be read.
_ONLY_READ = ("media", "files")
_NAMED_FILES = 3
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


# What a user cannot use: an open folder, the name in it, and the path from the workspace on.
_Barred = tuple[int, str, Path]


def owner_check(workspace: Path) -> Check:
    """Say which files the user of a workspace cannot use, and how that is mended."""
    if not workspace.is_dir():
        return Check("owners", "ok", "no workspace yet")
    user = user_of(workspace)
    barred = [str(path) for _, _, path in _barred(workspace, user)]
    if not barred:
        return Check("owners", "ok", f"every file can be used by {user.name}")
    text = f"{user.name} uses this workspace but cannot access {_named(barred)}, so messages wait"
    return Check("owners", "fail", text, f"chown -R {user.uid}:{user.gid} {workspace}")


def mend_owners(workspace: Path) -> int:
    """Give what its user cannot use back to him; return how many files and folders that were.

    A file with a second name is left to a person: the other name may lie outside of the workspace.

    Raises:
        PermissionError: only root can.
    """
    if not workspace.is_dir():
        return 0
    user, given = user_of(workspace), 0
    for parent, name, _ in _barred(workspace, user):
        fd = os.open(name, _LOOK, dir_fd=parent)
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
            yield top, ".", Path()
        for name in WRITTEN:
            if not _usable(top, name, user, write=True):
                yield top, name, Path(name)
            for folder, folders, files, fd in _walk(workspace / name):
                for each in sorted([*folders, *files]):
                    if not _usable(fd, each, user, write=name not in _ONLY_READ):
                        yield fd, each, (Path(folder) / each).relative_to(workspace)
    finally:
        os.close(top)


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
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


def contents(settings: Settings, *, within_s: float = LOCAL_S) -> Steps:
    """Look at everything that lies in a workspace, one after the other; nothing is changed."""
    for name, look in _CONTENTS.items():
        limit_s = patient(READ_ALL_S, within_s) if name in _READ_WHOLE else within_s
        yield looked(name, partial(look, settings), settings.workspace, within_s=limit_s)


def access(settings: Settings, *, within_s: float = LOCAL_S) -> Steps:
    """Say whether others can read the workspace, and whether its user can use all of it."""
    place = settings.workspace
    yield looked("permissions", lambda: _permissions(settings), place, within_s=within_s)
    yield looked("owners", lambda: [owner_check(place)], place, within_s=within_s)


def _folder(workspace: Path) -> Check:
    if (blocking := finding.in_the_way(workspace)) is not None:
        return Check("workspace", "fail", f"{blocking} is not a folder", finding.FOLDER_CURE)
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


def _erasures(settings: Settings) -> list[Check]:
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
    cure = "chat-gateway sessions verify --repair"
    found = [
        Check("transcripts", "warn", f"{row['file']}: {row['problem']}", row.get("cure", cure))
        for row in asyncio.run(_integrity(settings))
        # The check of the jobs says it.
        if row["file"] != JOBS_FILE
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


async def _integrity(settings: Settings, *, repair: bool = False) -> list[checking.Row]:
    async with contextlib.aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        return await integrity(store, repair=repair)


def _instructions(settings: Settings) -> Iterator[Check]:
    workspace = settings.workspace
    bad = list(Library(workspace).problems())
    if not bad:
        yield Check("instructions", "ok", "all playbooks and skills can be read")
    cure = "correct the lines between --- at its top; see docs/context.md"
    for one in bad:
        text = f"{one.path.relative_to(workspace)} is skipped: {one.problem}"
        yield Check("instructions", "warn", text, cure)


def _media(settings: Settings) -> list[Check]:
    size = media_bytes(Layout(settings.workspace))
    text = f"{size / 2**20:.0f} MB in media/"
    if size <= MEDIA_MANY_BYTES:
        return [Check("media", "ok", text)]
    cure = "set session.retention_days, or run chat-gateway sessions clear KEY --everything"
    return [Check("media", "warn", text, cure)]


_CONTENTS: Final[dict[str, Look]] = {
    "machine": lambda settings: machine.check(settings.workspace, settings.local_dir),
    "media": _media,
    "locks": _locks,
    "clock": _clock,
    "transcripts": _transcripts,
    "memory": lambda settings: [Check("memory", *check_memory(settings))],
    "instructions": _instructions,
    "cron": lambda settings: cron_checks(settings.workspace),
    "erasures": _erasures,
}


# What the gateway alone writes; what tools and people put into the two others keeps its mode.
PRIVATE: Final = ("state", "sessions", "memory", "cron")
_SHARED: Final = ("media", "files")
_NEEDED: Final = ("sessions", "memory", "state")
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


def _mend_owners(settings: Settings) -> Iterator[str]:
    if given := mend_owners(settings.workspace):
        name = user_of(settings.workspace).name
        yield f"{given} files and folders now belong to {name} again"


def _mend_permissions(settings: Settings) -> Iterator[str]:
    changed = list(_opened_or_shut(settings.workspace))
    if changed:
        yield f"now readable and writable only by the owner: {_named(changed)}"


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


def _mend_folders(settings: Settings) -> Iterator[str]:
    for name in _NEEDED:
        if not os.path.lexists(settings.workspace / name):
            make_folder(settings.workspace / name)
            yield f"created {name}"


def _mend_daemons(settings: Settings) -> Iterator[str]:
    if gone := DaemonRegistry(settings.workspace).forget_gone():
        yield f"removed crashed processes from state/daemon.json: {gone}"


def _mend_leftovers(settings: Settings) -> Iterator[str]:
    if gone := leftovers.remove_leftovers(Layout(settings.workspace)):
        yield f"removed {_named([str(path.relative_to(settings.workspace)) for path in gone])}"


def _mend_damage(settings: Settings) -> Iterator[str]:
    for row in asyncio.run(_integrity(settings, repair=True)):
        if row["repaired"]:
            yield f"{row['file']}: {row['problem']}; repaired"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_FILES} more" if len(names) > _NAMED_FILES else ""
    return ", ".join(names[:_NAMED_FILES]) + more


_FIXES: Final[dict[str, Callable[[Settings], Iterator[str]]]] = {
    "owners": _mend_owners,
    "permissions": _mend_permissions,
    "folders": _mend_folders,
    "daemons": _mend_daemons,
    "leftovers": _mend_leftovers,
    "damage": _mend_damage,
}
