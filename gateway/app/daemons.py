"""The processes of a workspace: which daemons run now and where they answer, how many files each may open."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import structlog

import durable
from durable import Damaged, LockHeld, decode_state, locked, replace
from gateway.errors import NewerState

try:
    import resource
except ImportError:
    # Windows has no such limit to ask for.
    resource = None  # type: ignore[assignment]

log = structlog.get_logger("daemon")

VERSION = 1
# So many entries of other containers are kept: one that was killed takes its own back no more.
FOREIGN_MAX = 32
# How long each waits for the list's lock. Whoever ends has turns to drain, and is left out once it is gone.
ADDS_WITHIN_S, REMOVES_WITHIN_S = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Running:
    """One daemon: process id, start of the process (clock ticks since boot), console URL, role.

    ``ending``: it takes nothing new; its running turns end.
    """

    pid: int
    birth: str
    url: str
    role: str
    started_at: str
    ending: bool = False

    @property
    def alive(self) -> bool:
        """Say whether this very process still runs on this machine, and in this container."""
        ticks, _, _ = self.birth.partition("@")
        return not self.foreign and bool(ticks) and _ticks(self.pid) == ticks

    @property
    def foreign(self) -> bool:
        """Whether it runs, if it does, where numbers mean other processes than here: in another container."""
        _, _, space = self.birth.partition("@")
        return space not in ("", _space())


class DaemonRegistry:
    """Reads and writes the list; entries of processes that are gone are left out."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / "state" / "daemon.json"

    def running(self) -> list[Running]:
        """List the daemons that live, oldest first, without those that are ending."""
        return [one for one in self._read() if one.alive and not one.ending]

    def ending(self) -> list[Running]:
        """List the daemons that let their running turns end."""
        return [one for one in self._read() if one.alive and one.ending]

    def forget_gone(self) -> int:
        """Take out the entries of processes that are gone; return how many those were.

        Raises:
            NewerState: a newer version wrote the list.
            OSError: the disk refused.
        """
        gone = sum(not one.alive for one in self._read())
        if gone:
            self._change()
        return gone

    @contextmanager
    def entry(self, *, url: str, role: str, ending: bool = False) -> Iterator[None]:
        """Stand in the list while the context is open; that it cannot be written is noted in the log.

        Raises:
            NewerState: a newer version had written the list when the context was entered.
        """
        pid = os.getpid()
        me = Running(pid, _birth(pid), url, role, durable.now().isoformat(), ending)
        added = self._added(me)
        try:
            yield
        finally:
            if added:
                self._remove(me)

    @asynccontextmanager
    async def listed(self, *, url: str, role: str, ending: bool = False) -> AsyncIterator[None]:
        """Stand in the list as ``entry`` does; the loop goes on while disk or lock keep it waiting."""
        held = ExitStack()
        await asyncio.to_thread(held.enter_context, self.entry(url=url, role=role, ending=ending))
        try:
            yield
        finally:
            await asyncio.to_thread(held.close)

    def _added(self, me: Running) -> bool:
        try:
            self._change(add=me, wait_s=REMOVES_WITHIN_S if me.ending else ADDS_WITHIN_S)
        except (OSError, LockHeld, NewerState) as error:
            if isinstance(error, NewerState) and not me.ending:
                raise
            # The list only shows daemons: this one works all the same.
            log.warning("daemon.unlisted", error=str(error))
            return False
        return True

    def _remove(self, me: Running) -> None:
        try:
            self._change(remove=me, wait_s=REMOVES_WITHIN_S)
        except (OSError, LockHeld, NewerState) as error:
            # Its process is gone soon, and then nobody lists it.
            log.warning("daemon.left_listed", error=str(error))

    def _read(self) -> list[Running]:
        try:
            content = decode_state(self._path.read_bytes(), VERSION, str(self._path), error=NewerState)
        except (FileNotFoundError, Damaged):
            return []
        fields = Running.__dataclass_fields__.keys() - {"ending"}
        return [
            Running(**{name: row[name] for name in fields}, ending=bool(row.get("ending")))
            for row in content.get("daemons", [])
            if isinstance(row, dict) and all(name in row for name in fields)
        ]

    def _change(
        self, *, add: Running | None = None, remove: Running | None = None, wait_s: float = ADDS_WITHIN_S
    ) -> None:
        # Several daemons of a workspace may start and end at once: none may write over another's entry.
        with locked(self._path.with_suffix(".lock"), wait_s=wait_s):
            rows = self._read()
            here = [one for one in rows if one.alive and one != remove]
            here += [add] if add is not None else []
            rows = [one for one in rows if one.foreign][-FOREIGN_MAX:] + here
            replace(self._path, orjson.dumps({"v": VERSION, "daemons": [asdict(row) for row in rows]}))


def others(workspace: Path) -> list[str]:
    """Name the other processes that say they work on a workspace, in words.

    Raises:
        NewerState: a newer version wrote the list.
        OSError: it cannot be read.
    """
    found = DaemonRegistry(workspace).running()
    return [f"pid {each.pid} (role {each.role})" for each in found if each.pid != os.getpid()]


def _birth(pid: int) -> str:
    """Return a text that a later process with the same number does not share; empty where none lives."""
    return f"{_ticks(pid)}@{_space()}"


def _ticks(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _space() -> str:
    """Name the space of numbers in which this process has its own; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


# macOS calls its hard limit infinite and yet refuses more than this.
MOST_ON_MACOS = 10_240
WITHOUT_A_LIMIT = 1_048_576


def raise_limit() -> int:
    """Raise the soft limit to the hard one; return how many descriptors this process may hold."""
    if resource is None:
        return WITHOUT_A_LIMIT
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MOST_ON_MACOS):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return limit()


def limit() -> int:
    """Return how many descriptors this process may hold."""
    if resource is None:
        return WITHOUT_A_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WITHOUT_A_LIMIT if soft == resource.RLIM_INFINITY else soft
