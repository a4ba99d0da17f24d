"""Mounts a disk that forgets: ``python -m tests.disk.forgetful FOLDER SAVED ...``; needs root and /dev/fuse.

It is a process of its own: memory that is mapped from a file of the mount is fetched with the interpreter's
lock held, so that a process which served itself would stand still for ever. ``SAVED`` is the disk that it
begins with, and that it leaves behind: as it is at SIGTERM, what a power cut leaves at a cut. What is told
goes to the standard output, a line each: ``mounted``, then ``cut SYNC PLACE``, when it no longer answers.

Pages are the kernel's (no direct_io), since SQLite maps its shared memory; so are locks.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tests.disk import fuse_wire
from tests.disk.fuse_wire import Look
from tests.disk.model import Disk, Fate, Node, Write, refusal
from tests.disk.mount import save, saved

_PR_SET_PDEATHSIG = 1


@dataclass
class Plan:
    """When the disk refuses a call, and when its power goes.

    Args:
        cut_at: the sync with this number is the last call, 1 for the first; 0: none.
        cut_before: that sync does nothing any more.
        refused: for the name of a call (make, rename, unlink, write, sync; append: a sync of
            what came to bytes that were synced) which ones are refused, and how.
    """

    cut_at: int = 0
    cut_before: bool = False
    refused: dict[str, tuple[range, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def comes(self, call: str) -> None:
        """Count a call, and refuse it where that is planned."""
        self.counts[call] += 1
        numbers, error = self.refused.get(call, (range(0), 0))
        if self.counts[call] in numbers:
            raise refusal(error)

    @property
    def cuts_now(self) -> bool:
        return self.counts["sync"] == self.cut_at


class Forgetful:
    """The kernel's calls, handed on to the model."""

    kernel_keeps = True

    def __init__(self, disk: Disk, plan: Plan, cut: Callable[[str], NoReturn]) -> None:
        self._disk, self._plan, self._cut = disk, plan, cut

    def _below(self, folder: int, name: str) -> str:
        return f"{self._disk.path(folder)}/{name}"

    def lookup(self, folder: int, name: str) -> Look:
        number = self._disk.nodes[folder].entries.get(name)
        if number is None:
            raise refusal(errno.ENOENT)
        return self.look(number)

    def look(self, number: int) -> Look:
        return fuse_wire.look_of(self._disk.nodes[number])

    def names(self, folder: int) -> list[tuple[str, int, int]]:
        nodes = self._disk.nodes
        return [(name, number, nodes[number].mode) for name, number in nodes[folder].entries.items()]

    def make(self, folder: int, name: str, mode: int) -> Look:
        self._plan.comes("make")
        return fuse_wire.look_of(self._disk.make(self._below(folder, name), mode))

    def link(self, number: int, folder: int, name: str) -> Look:
        self._plan.comes("make")
        self._disk.link(self._disk.path(number), self._below(folder, name))
        return self.look(number)

    def unlink(self, folder: int, name: str) -> None:
        self._plan.comes("unlink")
        self._disk.unlink(self._below(folder, name))

    def rename(self, folder: int, name: str, to: int, new: str) -> None:
        self._plan.comes("rename")
        self._disk.rename(self._below(folder, name), self._below(to, new))

    def open(self, number: int) -> None:
        pass

    def read(self, number: int, at: int, size: int) -> bytes:
        return bytes(self._disk.nodes[number].content[at : at + size])

    def write(self, number: int, at: int, data: bytes) -> None:
        self._plan.comes("write")
        self._disk.write(self._disk.nodes[number], Write(at, data))

    def cut(self, number: int, size: int) -> None:
        self._plan.comes("write")
        self._disk.write(self._disk.nodes[number], Write(cut=size))

    def touch(self, number: int, mtime_ns: int) -> None:
        self._disk.nodes[number].mtime_ns = mtime_ns

    def flush(self, number: int) -> None:
        pass

    def sync(self, number: int) -> None:
        node = self._disk.nodes[number]
        try:
            self._plan.comes("sync")
            if node.stable and node.writes:
                self._plan.comes("append")
        except OSError:
            self._disk.fail_sync(node)
            raise
        if self._plan.cuts_now and self._plan.cut_before:
            self._cut(self._place(node))
        self._disk.sync(node)
        if self._plan.cuts_now:
            self._cut(self._place(node))

    def lock(self, number: int, owner: int, kind: int) -> bool:
        return True

    def _place(self, node: Node) -> str:
        """Name a file as it is called now, for whoever reads where the cut was."""
        with contextlib.suppress(OSError):
            return self._disk.path(node.number) or "/"
        return "a file without a name"


def empty() -> Forgetful:
    return Forgetful(Disk(), Plan(), lambda _: sys.exit())


def refusals(words: list[str]) -> dict[str, tuple[range, int]]:
    """Read ``CALL:FIRST:COUNT:ERROR``."""
    found = {}
    for word in words:
        call, first, count, error = word.split(":")
        found[call] = range(int(first), int(first) + int(count)), getattr(errno, error)
    return found


def main() -> int:
    """Mount, and serve until SIGTERM or a cut."""
    parser = argparse.ArgumentParser(prog="forgetful")
    parser.add_argument("folder", type=Path)
    parser.add_argument("saved", type=Path)
    parser.add_argument("--cut-at", type=int, default=0)
    parser.add_argument("--cut-before", action="store_true")
    parser.add_argument("--names", type=float, default=0.5)
    parser.add_argument("--data", type=float, default=0.5)
    parser.add_argument("--torn", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refuse", action="append", default=[])
    given = parser.parse_args()
    # Left behind it would keep whoever looks at the mount waiting for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    fate = Fate(random.Random(given.seed), given.names, given.data, given.torn)
    plan = Plan(given.cut_at, given.cut_before, refusals(given.refuse))
    disk = saved(given.saved)

    def cut(place: str) -> NoReturn:
        save(disk.cut(fate), given.saved)
        print(f"cut {plan.counts['sync']} {place}", flush=True)
        # Nobody is answered any more: this process and those that wait for it are killed.
        while True:
            time.sleep(3600)

    fd = fuse_wire.mount(given.folder, "forgetful")
    # Waited for, not caught: one that comes just before the next call is read would not end the reading.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    serving = (fd, Forgetful(disk, plan, cut))
    threading.Thread(target=fuse_wire.serve, args=serving, daemon=True).start()
    print("mounted", flush=True)
    signal.sigwait({signal.SIGTERM})
    save(disk, given.saved)
    return 0


if __name__ == "__main__":
    sys.exit(main())
