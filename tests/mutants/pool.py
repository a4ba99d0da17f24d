"""Children that each try one mutant: so many side by side, each with a time limit and a folder of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMORY_BYTES = 4 << 30
_TIMES_AS_LONG = 6.0
# What a child that cannot take its mutant in ends with.
CANNOT = 77
# … and one whose test took too long.
TOO_LONG = 78
# The child's exit code, or None where it ran into its limit; and the folder, which is removed after that.
Done = Callable[[int | None, Path], None]


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a child may take: seconds by the clock, for one that waits for ever, and of the processor."""

    wait_s: float
    work_s: float

    @contextlib.contextmanager
    def over_test(self, seconds: float) -> Iterator[None]:
        """End this process where a test takes too long that took so many seconds without a fault."""
        timer = threading.Timer(self.wait_s + _TIMES_AS_LONG * seconds, os._exit, [TOO_LONG])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def with_tests(self, seconds: float) -> Limit:
        """Add what tests may take that took so long without a fault."""
        return Limit(self.wait_s + _TIMES_AS_LONG * seconds, self.work_s + _TIMES_AS_LONG * seconds)


@dataclass(slots=True)
class _Child:
    pid: int
    fd: int
    until: float
    folder: Path
    done: Done


class Pool:
    """Forks children, at most ``jobs`` at a time."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._children: list[_Child] = []

    def fork(self, limit: Limit, done: Done) -> Path | None:
        """Fork once there is room; return the child's folder in the child, None in the parent.

        The child leads a process group, which is killed with it. ``done`` is called in the parent, later.
        """
        while len(self._children) >= self._jobs:
            self._wait()
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        pid = os.fork()
        if pid == 0:
            _settle_in(folder, limit)
            return folder
        until = time.monotonic() + limit.wait_s
        self._children.append(_Child(pid, os.pidfd_open(pid), until, folder, done))
        return None

    def finish(self) -> None:
        """Wait for all children."""
        while self._children:
            self._wait()

    def _wait(self) -> None:
        """Wait until a child ended, or ran into its limit."""
        soonest = min(child.until for child in self._children)
        ready, _, _ = select.select(
            [child.fd for child in self._children], [], [], max(0.0, soonest - time.monotonic())
        )
        now = time.monotonic()
        for child in [each for each in self._children if each.fd in ready or each.until <= now]:
            self._children.remove(child)
            self._end(child, in_time=child.fd in ready)

    def _end(self, child: _Child, *, in_time: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        status = os.waitpid(child.pid, 0)[1]
        os.close(child.fd)
        code: int | None = os.waitstatus_to_exitcode(status)
        if not in_time or code in (TOO_LONG, -signal.SIGXCPU):
            code = None
        child.done(code, child.folder)
        shutil.rmtree(child.folder, ignore_errors=True)


def end_with_parent() -> None:
    """Let this process be killed once the one that forked it is gone."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _settle_in(folder: Path, limit: Limit) -> None:
    os.setsid()
    end_with_parent()
    nowhere = os.open(os.devnull, os.O_RDWR)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(nowhere, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    seconds = max(1, round(limit.work_s))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
