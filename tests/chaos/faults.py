"""Faults inside a victim, switched by the kit: a clock that jumps, a disk that is slow or fails.

A small file that both have mapped holds the switches, so that the victim needs no thread for them. The clock
is the one that programs see (``time.time``, ``datetime.now``), the disk the system calls ``fsync`` and
``fdatasync``. Nothing in the gateway knows of this: it is put around what Python offers, in a process made
for it.
"""

from __future__ import annotations

import ctypes
import datetime
import errno
import gc
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    def off_s() -> float:
        return float(_FORM.unpack_from(switches)[0])

    _clock(off_s)
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _disk(getattr(os, name), switches))


def _clock(off_s: Callable[[], float]) -> None:
    real, real_ns, now = time.time, time.time_ns, datetime.datetime.now
    time.time = lambda: real() + off_s()
    time.time_ns = lambda: real_ns() + int(off_s() * 1e9)

    def jumped(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return now(tz) + datetime.timedelta(seconds=off_s())

    # The class is Python's own, which takes no assignment: what stands behind its read-only view does.
    members: Any = gc.get_referents(datetime.datetime.__dict__)[0]
    members["now"] = classmethod(jumped)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def _disk(sync: Callable[[Any], None], switches: mmap.mmap) -> Callable[[Any], None]:
    def slowed(descriptor: Any) -> None:
        _, sync_s, fails = _FORM.unpack_from(switches)
        if sync_s:
            time.sleep(sync_s)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    return slowed
