"""Faults inside a victim, switched by the kit: a clock that jumps, a disk that is slow or fails.

A small file that both have mapped holds the switches, so that the victim needs no thread for them. The clock
is that of the product (``durable.World``), the disk the system calls ``fsync`` and ``fdatasync``.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import durable

# Seconds that the clock is off, seconds that a sync takes longer, whether each sync fails.
_FORM = struct.Struct("ddd")


class Switches:
    """The kit's side: ``set`` takes effect in the victim at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(_FORM.pack(0.0, 0.0, 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORM.size)

    def set(self, *, clock_s: float = 0.0, sync_s: float = 0.0, fails: bool = False) -> None:
        self._map[:] = _FORM.pack(clock_s, sync_s, float(fails))

    def close(self) -> None:
        self._map.close()


def install(path: Path) -> None:
    """Put the switches of this file around the clock and the disk of this process."""
    with path.open("r+b") as file:
        switches = mmap.mmap(file.fileno(), _FORM.size)

    class Jumping(durable.World):
        def wall_ns(self) -> int:
            return super().wall_ns() + int(_FORM.unpack_from(switches)[0] * 1e9)

    durable.use_world(Jumping())
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _disk(getattr(os, name), switches))


def _disk(sync: Callable[[Any], None], switches: mmap.mmap) -> Callable[[Any], None]:
    def slowed(descriptor: Any) -> None:
        _, sync_s, fails = _FORM.unpack_from(switches)
        if sync_s:
            time.sleep(sync_s)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    return slowed
