"""Mounts a network's disk for several machines: ``python -m tests.disk.network FOLDER ...``; needs root.

One server, and at each folder a client of its own with all that a client of NFS keeps to itself:

- **names and attributes** that were looked up are believed for ever, unless ``expire`` is said: an attribute
  cache that never runs out is the longest one. What a client does to a folder makes it look there anew.
- **opening a file** asks the server (close-to-open): a name that leads elsewhere by now is followed anew.
- **bytes** that were read are kept until the file is opened or locked again; what is written reaches the
  server with a sync, a look at its size, an unlock or the last close.
- **locks** are the server's, and leases: at ``lose`` it forgets those of a client, which is not told.

A file that was unlinked or replaced by another client stays readable to who has it open, as NFSv4 has it.
Commands come as lines, each is answered by one.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import signal
import stat
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.disk import fuse_wire
from tests.disk.fuse_wire import Look
from tests.disk.model import ROOT, Disk, Write, refusal

_PR_SET_PDEATHSIG = 1
_DETACH = 2
_WRITE, _UNLOCK = 1, 2
KIND = "network"


@dataclass
class Server:
    """The one disk, and who has which lock."""

    disk: Disk = field(default_factory=Disk)
    locks: dict[int, dict[tuple[str, int], int]] = field(default_factory=dict)

    def look(self, number: int) -> Look:
        return fuse_wire.look_of(self.disk.nodes[number])

    def take(self, number: int, who: tuple[str, int], kind: int) -> bool:
        held = self.locks.setdefault(number, {})
        others = [each for whose, each in held.items() if whose != who]
        if kind == _UNLOCK:
            held.pop(who, None)
        elif _WRITE in others or (others and kind == _WRITE):
            return False
        else:
            held[who] = kind
        return True

    def lose(self, client: str) -> int:
        """Forget all locks of a client; return how many there were."""
        count = 0
        for held in self.locks.values():
            for who in [who for who in held if who[0] == client]:
                del held[who]
                count += 1
        return count


class Client:
    """One machine's view; the calls of ``fuse_wire``."""

    kernel_keeps = False

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server
        self._disk = server.disk
        self.expire()
        self._dirty: dict[int, list[Write]] = {}

    def expire(self) -> None:
        """Believe nothing that was looked up any more."""
        self._names: dict[tuple[int, str], int | None] = {}
        self._lists: dict[int, list[tuple[str, int, int]]] = {}
        self._looks: dict[int, Look] = {}
        self._pages: dict[int, bytearray] = {}

    # -- names -------------------------------------------------------------------------------------

    def lookup(self, folder: int, name: str) -> Look:
        if (folder, name) not in self._names:
            number = self._disk.nodes[folder].entries.get(name)
            self._names[folder, name] = number
            if number is not None:
                self._looks[number] = self._server.look(number)
        number = self._names[folder, name]
        if number is None:
            raise refusal(errno.ENOENT)
        return self.look(number)

    def look(self, number: int) -> Look:
        if self._dirty.get(number):
            # The size of what is not written yet is asked of the server, too.
            self.flush(number)
        if number not in self._looks:
            self._looks[number] = self._server.look(number)
        return self._looks[number]

    def names(self, folder: int) -> list[tuple[str, int, int]]:
        if folder not in self._lists:
            nodes = self._disk.nodes
            self._lists[folder] = [(name, n, nodes[n].mode) for name, n in nodes[folder].entries.items()]
        return self._lists[folder]

    def _changed(self, *folders: int) -> None:
        """Look anew at folders in which this client changed something."""
        for folder in folders:
            for known in [known for known in self._names if known[0] == folder]:
                number = self._names.pop(known)
                self._looks.pop(number or 0, None)
            self._lists.pop(folder, None)
            self._looks.pop(folder, None)

    def make(self, folder: int, name: str, mode: int) -> Look:
        self._changed(folder)
        node = self._disk.make(f"{self._disk.path(folder)}/{name}", mode)
        return self._server.look(node.number)

    def link(self, number: int, folder: int, name: str) -> Look:
        self._changed(folder)
        old, new = self._disk.path(number), f"{self._disk.path(folder)}/{name}"
        self._disk.link(old, new)
        self._looks.pop(number, None)
        return self.look(number)

    def unlink(self, folder: int, name: str) -> None:
        self._changed(folder)
        self._disk.unlink(f"{self._disk.path(folder)}/{name}")

    def rename(self, folder: int, name: str, to: int, new: str) -> None:
        self._changed(folder, to)
        self._disk.rename(f"{self._disk.path(folder)}/{name}", f"{self._disk.path(to)}/{new}")

    # -- bytes -------------------------------------------------------------------------------------

    def open(self, number: int) -> None:
        ways = [known for known, found in self._names.items() if found == number]
        for folder, name in ways:
            if self._disk.nodes[folder].entries.get(name) != number:
                del self._names[folder, name]
        if ways and number not in self._names.values():
            # The kernel walks the path once more, and is led to what stands there now.
            raise refusal(errno.ESTALE)
        self._revalidate(number)

    def _revalidate(self, number: int) -> None:
        self.flush(number)
        self._looks[number] = self._server.look(number)
        self._pages.pop(number, None)

    def _page(self, number: int) -> bytearray:
        if number not in self._pages:
            self._pages[number] = bytearray(self._disk.nodes[number].content)
        return self._pages[number]

    def read(self, number: int, at: int, size: int) -> bytes:
        return bytes(self._page(number)[at : at + size])

    def write(self, number: int, at: int, data: bytes) -> None:
        written = Write(at, data)
        written.on(self._page(number))
        self._dirty.setdefault(number, []).append(written)

    def cut(self, number: int, size: int) -> None:
        self.flush(number)
        self._disk.write(self._disk.nodes[number], Write(cut=size))
        self._revalidate(number)

    def touch(self, number: int, mtime_ns: int) -> None:
        self.flush(number)
        self._disk.nodes[number].mtime_ns = mtime_ns
        self._looks.pop(number, None)

    def flush(self, number: int) -> None:
        dirty = self._dirty.pop(number, [])
        for write in dirty:
            self._disk.write(self._disk.nodes[number], write)
        if dirty:
            self._looks[number] = self._server.look(number)

    def sync(self, number: int) -> None:
        self.flush(number)
        self._disk.sync(self._disk.nodes[number])

    def lock(self, number: int, owner: int, kind: int) -> bool:
        if kind == _UNLOCK:
            self.flush(number)
        taken = self._server.take(number, (self.name, owner), kind)
        if taken and kind != _UNLOCK:
            self._revalidate(number)
        return taken


class _Guarded:
    """Lets one call at a time reach the server."""

    def __init__(self, client: Client, turn: threading.Lock) -> None:
        self._client, self._turn = client, turn

    def __getattr__(self, name: str) -> object:
        call = getattr(self._client, name)
        if not callable(call):
            return call

        def guarded(*args: object) -> object:
            with self._turn:
                return call(*args)

        return guarded


def main() -> int:
    """Mount, and do what is said until nothing more is."""
    parser = argparse.ArgumentParser(prog="network")
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    server, turn = Server(), threading.Lock()
    server.disk.nodes[ROOT].mode = stat.S_IFDIR | 0o700
    clients = {each.name: Client(each.name, server) for each in given.folders}
    for folder in given.folders:
        folder.mkdir(parents=True, exist_ok=True)
        fd = fuse_wire.mount(folder, KIND)
        serving = (fd, _Guarded(clients[folder.name], turn))
        threading.Thread(target=fuse_wire.serve, args=serving, daemon=True).start()
    print("mounted", flush=True)
    for line in sys.stdin:
        word, name = line.split()
        with turn:
            answer = server.lose(name) if word == "lose" else clients[name].expire()
        print(answer, flush=True)
    for folder in given.folders:
        ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
