"""Searches by regular expressions that may run for ever: in another process, with a limit; for threads."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from durable import spawn, write_all

CHILD = Path(__file__).with_name("pattern_child.py")
# Beyond the limit, which is time of the processor, for a process that the machine lets wait.
START_S = 10.0


@dataclass(frozen=True, slots=True)
class PatternResult:
    """What came of one pattern. ``problem`` is empty, or says why nothing did; ``lines`` count from 1.

    ``broke`` says that the problem is not the pattern's: the search itself came to an end.
    """

    hit: bool = False
    lines: Sequence[int] = field(default=())
    problem: str = ""
    slow: bool = False
    broke: bool = False


class Searcher:
    """One process that searches, started when it is first needed and again when a pattern had it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Searcher:
        """Start nothing yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """End the process."""
        self.close()

    def search(
        self,
        patterns: Sequence[str],
        text: str,
        *,
        limit_s: float,
        ignore_case: bool = True,
        most_lines: int = 0,
    ) -> list[PatternResult]:
        """Search ``text`` for each pattern; one that takes over ``limit_s`` is given up, alone.

        Args:
            patterns: regular expressions of the standard library; a broken one is a problem of its own.
            text: what is searched.
            limit_s: of the processor, for each: a busy machine makes no pattern slow.
            ignore_case: whether capitals matter not.
            most_lines: 0 searches the text as a whole; else line by line, until so many lines were found.

        Raises:
            OSError: the process cannot be started.
        """
        found: list[PatternResult] = []
        with self._lock:
            while len(found) < len(patterns):
                request = {
                    "patterns": patterns[len(found) :],
                    "text": text,
                    "limit_s": limit_s,
                    "ignore_case": ignore_case,
                    "most_lines": most_lines,
                }
                found += self._ask(request, limit_s)
                if len(found) < len(patterns):
                    found.append(self._given_up(limit_s))
        return found

    def close(self) -> None:
        """End the process; a later search starts another."""
        with self._lock:
            self._end()

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> list[PatternResult]:
        """Return what the process says until it is done or ended."""
        child = self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            write_all(child.stdin.fileno(), json.dumps(request).encode() + b"\n")
        said = _lines(child.stdout.fileno(), len(request["patterns"]), each_s=limit_s + START_S)
        return [PatternResult(**json.loads(line)) for line in said]

    def _given_up(self, limit_s: float) -> PatternResult:
        """End what did not answer, and say why it did not."""
        child = self._child
        with suppress(subprocess.TimeoutExpired):
            slow = child is None or child.wait(1) == -signal.SIGPROF
            self._end()
            if slow:
                return PatternResult(problem=f"it ran for over {limit_s:g} s", slow=True)
            return PatternResult(problem="the search broke", broke=True)
        self._end()
        return PatternResult(problem="the search did not answer", slow=True)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = spawn([sys.executable, "-I", "-S", str(CHILD)])
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        child.wait()


def _lines(fd: int, count: int, *, each_s: float) -> list[bytes]:
    """Read so many lines; fewer where the next one does not come in time, or the process is gone."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = b""
    while data.count(b"\n") < count and poll.poll(each_s * 1000):
        piece = os.read(fd, 65536)
        if not piece:
            break
        data += piece
    return data.split(b"\n")[:-1]
