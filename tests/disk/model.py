"""A disk that forgets: files and folders as they look now, and what of them a power cut leaves. Pure.

The rules are those of POSIX, read as badly as they may be meant:

- ``fsync`` and ``fdatasync`` of a file keep its bytes and its length, and not its name.
- ``fsync`` of a folder keeps the names that were given and taken in it, and nothing of what they name.
- Of everything since the last sync each change of a name is kept or lost by itself; of a file each sector is
  as some write left it, its length as some write left that, and what lies between reads as zeros.
- A rename is one change: it never loses both names. Into another folder it is a name given there, which a
  sync of either folder keeps, and one taken here, which only a sync of this folder keeps for sure.
- After a failed sync the bytes may still be read, and no later sync keeps them.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

ROOT = 1
SECTORS = (512, 4096)


def refusal(number: int) -> OSError:
    """Return the error with this number, as the system words it."""
    return OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were written and not synced; ``cut``: the length that the file was given, instead."""

    at: int = 0
    data: bytes = b""
    cut: int | None = None

    def on(self, content: bytearray) -> None:
        if self.cut is not None:
            _resize(content, self.cut)
            return
        if len(content) < self.at:
            _resize(content, self.at)
        content[self.at : self.at + len(self.data)] = self.data


@dataclass(eq=False, slots=True)
class Change:
    """A name that was taken from a folder, one that was given in it, or both at once; not synced.

    ``needs``: the name that was given in another folder instead; ``kept``: it is on disk for sure.
    """

    taken: str | None = None
    given: tuple[str, int] | None = None
    needs: Change | None = None
    kept: bool = False

    def on(self, entries: dict[str, int]) -> None:
        if self.taken is not None:
            entries.pop(self.taken, None)
        if self.given is not None:
            entries[self.given[0]] = self.given[1]


@dataclass(eq=False, slots=True)
class Node:
    """A file or a folder: as it looks, as it is on disk for sure, and what happened in between."""

    number: int
    mode: int
    mtime_ns: int = 0
    links: int = 0
    content: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    writes: list[Write] = field(default_factory=list)
    entries: dict[str, int] = field(default_factory=dict)
    stable_entries: dict[str, int] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of everything that was not synced, by chance.

    Args:
        names: how likely a change of a name is kept.
        data: how likely a file is as it looked; 0: as it was synced.
        torn: each sector and the length of a file are kept or lost by themselves.
    """

    dice: random.Random
    names: float = 0.5
    data: float = 0.5
    torn: bool = False

    def keeps_name(self) -> bool:
        return self.dice.random() < self.names

    def version(self, writes: int) -> int:
        """Decide how many of so many writes are kept, from the first on."""
        if 0 < self.data < 1:
            return self.dice.randint(0, writes)
        return writes if self.data else 0


class Disk:
    """The whole tree. Every method raises OSError as the system call of its name would."""

    def __init__(self, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._last = ROOT
        self.nodes = {ROOT: Node(ROOT, stat.S_IFDIR | 0o755, links=1, mtime_ns=clock())}

    # -- names -------------------------------------------------------------------------------------

    def find(self, path: str) -> Node:
        """Return what a path names; links are followed by the kernel, not here."""
        node = self.nodes[ROOT]
        for name in filter(None, path.split("/")):
            if not node.is_folder:
                raise refusal(errno.ENOTDIR)
            if name not in node.entries:
                raise refusal(errno.ENOENT)
            node = self.nodes[node.entries[name]]
        return node

    def paths(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each file and folder with each of its paths; that of the top is empty."""
        waiting = [(ROOT, "")]
        while waiting:
            number, path = waiting.pop()
            yield number, path
            waiting += [(n, f"{path}/{name}") for name, n in self.nodes[number].entries.items()]

    def path(self, number: int) -> str:
        found = next((path for n, path in self.paths() if n == number), None)
        if found is None:
            raise refusal(errno.ESTALE)
        return found

    def make(self, path: str, mode: int) -> Node:
        folder, name = self._free(path)
        self._last += 1
        node = self.nodes[self._last] = Node(self._last, mode, mtime_ns=self._clock())
        self._change(folder, Change(given=(name, node.number)))
        return node

    def link(self, path: str, new: str) -> None:
        folder, name = self._free(new)
        self._change(folder, Change(given=(name, self.find(path).number)))

    def unlink(self, path: str) -> None:
        """Take a name away; a folder must be empty."""
        if self.find(path).entries:
            raise refusal(errno.ENOTEMPTY)
        folder, name = self._place(path)
        self._change(folder, Change(taken=name))

    def rename(self, old: str, new: str) -> None:
        """Give what has the name ``old`` the name ``new``, in the place of what has that."""
        node, (source, name), (target, new_name) = self.find(old), self._place(old), self._place(new)
        there = target.entries.get(new_name)
        if there == node.number:
            return
        if there is not None and self.nodes[there].entries:
            raise refusal(errno.ENOTEMPTY)
        arrival = Change(given=(new_name, node.number))
        if source is target:
            arrival.taken = name
            self._change(source, arrival)
        else:
            self._change(target, arrival)
            self._change(source, Change(taken=name, needs=arrival))

    def _place(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rpartition("/")
        node = self.find(folder)
        if not node.is_folder:
            raise refusal(errno.ENOTDIR)
        return node, name

    def _free(self, path: str) -> tuple[Node, str]:
        folder, name = self._place(path)
        if name in folder.entries:
            raise refusal(errno.EEXIST)
        return folder, name

    def _change(self, folder: Node, change: Change) -> None:
        for name in (change.taken, change.given[0] if change.given else None):
            if name in folder.entries:
                self.nodes[folder.entries[name]].links -= 1
        change.on(folder.entries)
        if change.given:
            self.nodes[change.given[1]].links += 1
        folder.changes.append(change)
        folder.mtime_ns = self._clock()

    # -- bytes and syncs ---------------------------------------------------------------------------

    def write(self, node: Node, write: Write) -> None:
        write.on(node.content)
        node.writes.append(write)
        node.mtime_ns = self._clock()

    def sync(self, node: Node) -> None:
        for write in node.writes:
            write.on(node.stable)
        for change in node.changes:
            change.kept = True
            if change.needs is not None:
                change.needs.kept = True
        if node.is_folder:
            node.stable_entries = dict(node.entries)
        node.writes, node.changes = [], []

    def fail_sync(self, node: Node) -> None:
        """Be what a file is after a sync that failed: it reads as it did, and no sync keeps that any more."""
        node.writes = []

    # -- the cut -----------------------------------------------------------------------------------

    def cut(self, fate: Fate) -> Disk:
        """Return what a power cut leaves, all of it on disk."""
        left = Disk(clock=self._clock)
        left._last = self._last
        kept = self._kept(fate)
        for node in self.nodes.values():
            entries = dict(node.stable_entries)
            for change in node.changes:
                if change in kept:
                    change.on(entries)
            content = _survivors(node, fate) if node.writes else bytearray(node.stable)
            left.nodes[node.number] = Node(
                node.number, node.mode, node.mtime_ns,
                content=content, stable=bytearray(content), entries=entries, stable_entries=dict(entries),
            )  # fmt: skip
        left._forget_the_nameless()
        return left

    def _kept(self, fate: Fate) -> set[Change]:
        changes = [change for node in self.nodes.values() for change in node.changes]
        kept = {one for one in changes if one.kept or (one.needs is None and fate.keeps_name())}
        # A rename gives the new name before it takes the old one.
        moved = (one for one in changes if one.needs is not None and (one.needs.kept or one.needs in kept))
        return kept | {one for one in moved if fate.keeps_name()}

    def _forget_the_nameless(self) -> None:
        self.nodes[ROOT].links = 1
        reached, waiting = {ROOT}, [ROOT]
        while waiting:
            for number in self.nodes[waiting.pop()].entries.values():
                self.nodes[number].links += 1
                if number not in reached:
                    reached.add(number)
                    waiting.append(number)
        self.nodes = {number: self.nodes[number] for number in reached}


def _survivors(node: Node, fate: Fate) -> bytearray:
    """Put together what a file holds after a cut, each sector as one of its writes left it."""
    last = len(node.writes)
    most = max(len(node.stable), *(max(one.at + len(one.data), one.cut or 0) for one in node.writes))
    sector = fate.dice.choice(SECTORS) if fate.torn else max(most, 1)
    length_of = fate.version(last)
    sectors: dict[int, list[int]] = {}
    for at in range(0, most, sector):
        version = fate.dice.randint(0, last) if fate.torn else length_of
        sectors.setdefault(version, []).append(at)
    content, left, length = bytearray(node.stable), bytearray(most), 0
    for version in range(last + 1):
        for at in sectors.get(version, ()):
            piece = content[at : at + sector]
            left[at : at + len(piece)] = piece
        if version == length_of:
            length = len(content)
        if version < last:
            node.writes[version].on(content)
    _resize(left, length)
    return left


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
