"""Mounts a disk that forgets: ``python -m tests.disk.forgetful FOLDER SAVED ...``; needs /dev/fuse.

It is a process of its own: memory that is mapped from a file of the mount is fetched with the interpreter's
lock held, so that a process which served itself would stand still for ever. ``SAVED`` is the disk that it
begins with, and that it leaves behind: as it is at SIGTERM, what a power cut leaves at a cut. What is told
goes to the standard output, a line each: ``mounted``, then ``cut SYNC PLACE``, when it no longer answers.

Pages are the kernel's (no direct_io), since SQLite maps its shared memory; so are locks. What the kernel asks
by name it cannot ask of a file that has none any more: ``fstat`` of that fails (ESTALE), as on NFS.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import itertools
import os
import random
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import mfusepy

from tests.disk.model import ROOT, Disk, Fate, Node, Write, refusal
from tests.disk.mount import save, saved

_BLOCK = 4096
_PR_SET_PDEATHSIG = 1
_BLOCKS = 2**26
Kept = Callable[[Disk], None]


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
        """Whether this sync is the last call."""
        return self.counts["sync"] == self.cut_at


class Forgetful(mfusepy.Operations):
    """The kernel's calls, handed on to the model."""

    use_ns = flag_nopath = flag_nullpath_ok = True

    def __init__(self, disk: Disk, plan: Plan, cut: Callable[[Disk, str], NoReturn]) -> None:
        self.disk = disk
        self._plan = plan
        self._cut = cut
        self._open: dict[int, Node] = {}
        self._handles = itertools.count(1)

    def _node(self, path: str | None, fh: int | None = None) -> Node:
        return self._open[fh] if fh else self.disk.find(path or "/")

    def _handle(self, node: Node) -> int:
        number = next(self._handles)
        self._open[number] = node
        return number

    def init(self, path: str) -> None:
        print("mounted", flush=True)

    # -- looking -----------------------------------------------------------------------------------

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        node = self._node(path, fh)
        size = len(node.target) if stat.S_ISLNK(node.mode) else len(node.content)
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.mtime_ns)
        return {
            "st_ino": node.number,
            "st_mode": node.mode,
            "st_nlink": 2 if node.is_folder else node.links,
            "st_uid": node.uid,
            "st_gid": node.gid,
            "st_size": size,
            "st_blocks": -(-size // 512),
            "st_blksize": _BLOCK,
            **times,
        }

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        nodes = ((name, self.disk.nodes[number]) for name, number in self._open[fh].entries.items())
        # An entry without a number is no entry to the C library.
        return [(name, {"st_ino": node.number, "st_mode": node.mode}, 0) for name, node in nodes]

    def readlink(self, path: str) -> str:
        return self.disk.find(path).target

    def statfs(self, path: str) -> dict[str, int]:
        blocks = dict.fromkeys(("f_blocks", "f_bfree", "f_bavail"), _BLOCKS)
        return {"f_bsize": _BLOCK, "f_frsize": _BLOCK, "f_namemax": 255, **blocks}

    # -- names -------------------------------------------------------------------------------------

    def _made(self, path: str, mode: int, target: str = "") -> Node:
        self._plan.comes("make")
        node = self.disk.make(path, mode, target=target)
        node.uid, node.gid, _ = mfusepy.fuse_get_context()
        return node

    def mkdir(self, path: str, mode: int) -> int:
        self._made(path, stat.S_IFDIR | stat.S_IMODE(mode))
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        self._made(path, mode)
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._made(target, stat.S_IFLNK | 0o777, source)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self._handle(self._made(path, stat.S_IFREG | stat.S_IMODE(mode)))

    def link(self, target: str, source: str) -> int:
        self._plan.comes("make")
        self.disk.link(source, target)
        return 0

    def unlink(self, path: str) -> int:
        self._plan.comes("unlink")
        self.disk.unlink(path)
        return 0

    def rmdir(self, path: str) -> int:
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        self._plan.comes("rename")
        self.disk.rename(old, new)
        return 0

    def chmod(self, path: str | None, mode: int, fh: int | None = None) -> int:
        node = self._node(path, fh)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str | None, uid: int, gid: int, fh: int | None = None) -> int:
        node = self._node(path, fh)
        node.uid, node.gid = node.uid if uid == -1 else uid, node.gid if gid == -1 else gid
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None, fh: int | None = None) -> int:
        self._node(path, fh).mtime_ns = times[1] if times else time.time_ns()
        return 0

    # -- bytes and syncs ---------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        return self._handle(self.disk.find(path))

    def opendir(self, path: str) -> int:
        return self._handle(self.disk.find(path))

    def release(self, path: str | None, fh: int) -> int:
        del self._open[fh]
        return 0

    def releasedir(self, path: str | None, fh: int) -> int:
        return self.release(path, fh)

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._open[fh].content[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        self._plan.comes("write")
        self.disk.write(self._open[fh], Write(offset, bytes(data)))
        return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self._plan.comes("write")
        self.disk.write(self._node(path, fh), Write(cut=length))
        return 0

    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        node = self._open[fh]
        try:
            self._plan.comes("sync")
            if node.stable and node.writes:
                self._plan.comes("append")
        except OSError:
            self.disk.fail_sync(node)
            raise
        if self._plan.cuts_now and self._plan.cut_before:
            self._cut(self.disk, self._place(node))
        self.disk.sync(node)
        if self._plan.cuts_now:
            self._cut(self.disk, self._place(node))
        return 0

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        return self.fsync(path, datasync, fh)

    def _place(self, node: Node) -> str:
        """Name a file as it is called now, for whoever reads where the cut was."""
        waiting = [("", self.disk.nodes[ROOT])]
        while waiting:
            path, found = waiting.pop()
            if found is node:
                return path or "/"
            waiting += [(f"{path}/{name}", self.disk.nodes[n]) for name, n in found.entries.items()]
        return "a file without a name"


class _Fuse(mfusepy.FUSE):
    """Hands on which open file a call is about, where that has no name any more."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        return int(self.operations.truncate(_text(path), length, _handle_of(fip)))

    def chmod_fuse_3(self, path: bytes | None, mode: int, fip: Any) -> int:
        return int(self.operations.chmod(_text(path), mode, _handle_of(fip)))

    def chown_fuse_3(self, path: bytes | None, uid: int, gid: int, fip: Any) -> int:
        ids = (-1 if one in (-1, 2**32 - 1) else one for one in (uid, gid))
        return int(self.operations.chown(_text(path), *ids, _handle_of(fip)))

    def utimens_fuse_3(self, path: bytes | None, buf: Any, fip: Any) -> int:
        times = None
        if buf:
            times = tuple(
                one.tv_sec * 10**9 + one.tv_nsec for one in (buf.contents.actime, buf.contents.modtime)
            )
        return int(self.operations.utimens(_text(path), times, _handle_of(fip)))


def _text(path: bytes | None) -> str | None:
    return None if path is None else os.fsdecode(path)


def _handle_of(fip: Any) -> int | None:
    return fip.contents.fh if fip else None


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
    parser.add_argument("folder")
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

    def cut(disk: Disk, place: str) -> NoReturn:
        save(disk.cut(fate), given.saved)
        print(f"cut {plan.counts['sync']} {place}", flush=True)
        # Nobody is answered any more: this process and those that wait for it are killed.
        while True:
            time.sleep(3600)

    operations = Forgetful(saved(given.saved), plan, cut)
    disk = operations.disk
    # A signal's end is an error to the library.
    with contextlib.suppress(RuntimeError):
        _Fuse(
            operations,
            given.folder,
            foreground=True,
            nothreads=True,
            hard_remove=True,
            use_ino=True,
            attr_timeout=0,
            entry_timeout=0,
            fsname="forgetful",
        )
    save(disk, given.saved)
    print(f"left {plan.counts['sync']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
