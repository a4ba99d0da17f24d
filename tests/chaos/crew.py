"""Knows the worker processes of each life of a gateway, and which of them made a connection."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_MODULE = b"gateway.cli.worker"


class Crew:
    """The workers of one gateway over all its lives; they may outlive it, until their turns have ended.

    Args:
        home: which home directory its processes have, and no others.
    """

    def __init__(self, home: Path) -> None:
        self._home = f"HOME={home}".encode()
        self._life, self._gateway = "", 0
        # By process id the life of the gateway that started it.
        self._lives: dict[int, str] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def begin(self, life: str, gateway: int) -> None:
        """Note that a life of the gateway has begun."""
        self._life, self._gateway = life, gateway

    def living(self) -> list[int]:
        """List the workers of the present life by their process ids."""
        found = []
        for path in Path(f"/proc/{self._gateway}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
        pids = sorted(pid for pid in found if _is_worker(pid))
        self._lives |= dict.fromkeys(pids, self._life)
        return pids

    def name(self, pid: int) -> str:
        """Return by which name the records know a worker."""
        return f"{self._lives.get(pid, self._life)}.w{pid}"

    def names(self) -> list[str]:
        """Name all that live, those of earlier lives as well."""
        self.living()
        return [self.name(pid) for pid in self._lives if _is_worker(pid)]

    def numbered(self, life: str, number: int, pid: int) -> None:
        """Note what its gateway says: which process a worker is now."""
        self._lives[pid] = life
        self._numbers[life, number] = pid

    def has_started(self, pid: int) -> bool:
        """Say whether its gateway has told of it: one that still starts is waited for with more patience."""
        return pid in self._numbers.values()

    def by_number(self, life: str, number: int) -> str:
        """Return the name of a worker by the number that its lines in the log have."""
        pid = self._numbers.get((life, number))
        return life if pid is None else self.name(pid)

    def of_port(self, life: str, port: int) -> str:
        """Return the name of the worker at the other end of a connection; of the gateway where it is none."""
        sockets = _sockets(port)
        self.living()
        for pid, its in self._lives.items():
            if its == life and _holds(pid, sockets):
                return self.name(pid)
        return life

    def kill(self) -> None:
        """Kill all that live, also those that were never seen: one that stands still would stay for ever."""
        for path in Path("/proc").glob("[0-9]*"):
            if _is_worker(int(path.name)) and self._is_ours(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.name), signal.SIGKILL)

    def _is_ours(self, process: Path) -> bool:
        try:
            return self._home in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _is_worker(pid: int) -> bool:
    try:
        return _MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _sockets(port: int) -> set[str]:
    """Name the sockets on this machine whose own port that is: another address or end may have one, too."""
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {f"socket:[{words[9]}]" for words in rows if words[1].endswith(f":{port:04X}")}


def _holds(pid: int, sockets: set[str]) -> bool:
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if str(path.readlink()) in sockets:
                return True
    return False
