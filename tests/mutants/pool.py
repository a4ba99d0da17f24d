"""Children that each try one mutant: so many side by side, each with a time limit and a folder of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMORY_BYTES = 4 << 30
_PR_SET_PDEATHSIG = 1
_TIMES_AS_LONG = 6.0
# What a child ends with whose test took too long.
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
        timer = _ends_in(self.wait_s + _TIMES_AS_LONG * seconds)
        try:
            yield
        finally:
            timer.cancel()

    def with_tests(self, seconds: float) -> Limit:
        """Add what tests may take that took so long without a fault."""
        return Limit(self.wait_s + _TIMES_AS_LONG * seconds, self.work_s + _TIMES_AS_LONG * seconds)


def _ends_in(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os._exit, [TOO_LONG])
    timer.daemon = True
    timer.start()
    return timer


class Pool:
    """Forks children, at most ``jobs`` at a time."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._children: dict[int, tuple[Path, Done]] = {}

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
        self._children[pid] = folder, done
        return None

    def finish(self) -> None:
        while self._children:
            self._wait()

    def _wait(self) -> None:
        pid, status = os.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        folder, done = self._children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        done(None if code in (TOO_LONG, -signal.SIGXCPU) else code, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _settle_in(folder: Path, limit: Limit) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(nowhere, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    seconds = max(1, round(limit.work_s))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
    _ends_in(limit.wait_s)
