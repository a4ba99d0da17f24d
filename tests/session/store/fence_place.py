"""A workspace with the fence of one key, and what lies in it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from session.disk import file_system
from session.disk.layout import Layout, OpenFiles
from session.store.fence import Fence, Held
from session.store.lock_record import LockRecord, read_record, write_record

STEM, KEY = "telegram_1", "telegram:1"
# Owners on two machines.
HERE, THERE = "here.1:10:A", "there.1:10:B"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.transcript(STEM).parent.mkdir(parents=True)
    return layout


def fence(layout: Layout, owner: str = "one", *, freeze_s: float = 30.0, kept: bool = False) -> Fence:
    return Fence(layout, STEM, owner=owner, freeze_s=freeze_s, kept=OpenFiles() if kept else None)


def claim(each: Fence, key: str = KEY, *, anew: bool = False) -> int:
    with each.hold(None) as held:
        return held.claim(key, anew=anew)


def leave(layout: Layout, record: LockRecord) -> None:
    """Leave a lock file as a process that is gone."""
    layout.lock(STEM).parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(layout.lock(STEM), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    write_record(fd, record)
    os.close(fd)


def is_free(layout: Layout) -> bool:
    with layout.lock(STEM).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def opened_below(layout: Layout) -> int:
    """Count what this process has open of a workspace, files that have no name any more among it."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found += str(fd.readlink()).startswith(str(layout.sessions.parent))
        except FileNotFoundError:
            continue
    return found


class Looks(threading.Event):
    """A wait of which the test says what happens at each look."""

    def __init__(self, at: Callable[[int], None]) -> None:
        super().__init__()
        self._at = at
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        self._at(self.count)
        return super().wait(timeout)


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the disk of this test taken for a network's."""
    monkeypatch.setitem(file_system.MAGICS, file_system.magic_of(tmp_path), "nfs")
    file_system._leases.cache_clear()
    yield
    file_system._leases.cache_clear()


def lost(held: Held) -> None:
    """Lose the lock that ``held`` believes to hold, as a server that heard nothing of its client does."""
    fcntl.flock(held.file.fd, fcntl.LOCK_UN)


def stored(layout: Layout) -> LockRecord:
    return read_record(layout.lock(STEM).read_bytes(), STEM)


def inode(path: Path) -> int:
    return path.stat().st_ino


def fill(layout: Layout) -> list[Path]:
    layout.keys.mkdir(parents=True, exist_ok=True)
    paths = [layout.transcript(STEM), layout.journal(STEM)]
    for path in paths:
        path.write_bytes(b"x" * 10)
    return paths
