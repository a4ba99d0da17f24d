"""Indexes large amounts of text in a process of its own, so that turns do not wait for it; for threads.

The process is told on standard input what to read. That stays open: its end means that nobody waits.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import structlog

import durable
from durable import NOTHING, spawn
from session.recall.index import WordIndex
from session.recall.update import BULK_LINES, ScopeFiles, Update

log = structlog.get_logger("recall")

# What the process says as it ends: that the index holds everything, or that its time was over.
WHOLE, LEFT = 0, 3
Outcome = Literal["whole", "left", "broken"]


class Ending(threading.Event):
    """Set when nobody waits for a piece of work any more; the process that does it is ended by that."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def set(self) -> None:
        """End it; its process is gone in a moment."""
        super().set()
        with self._guard:
            if self._child is not None:
                self._child.kill()

    def owns(self, child: subprocess.Popen[bytes] | None) -> None:
        """Note which process works, or that none does any more."""
        with self._guard:
            self._child = child
            if child is not None and self.is_set():
                child.kill()


def bring_up(index: Path, files: ScopeFiles, ending: Ending, *, within_s: float | None = None) -> Outcome:
    """Let a process read what is new, and wait for it.

    It ends with this one, however that ends: it holds a pipe which the system closes. A kill of either costs
    the transaction that was under way, nothing else.

    Setting ``ending`` ends it; it reads for ``within_s`` at most.

    Returns:
        Whether the index is whole, or more is left to read; ``broken`` where the process could not be
        started, was killed or failed.
    """
    try:
        child = spawn([sys.executable, "-I", "-m", "session.recall.bulk"], stdout=NOTHING)
    except OSError as error:
        log.warning("recall.child_not_started", error=str(error))
        return "broken"
    ending.owns(child)
    try:
        assert child.stdin is not None
        with child.stdin:
            with suppress(BrokenPipeError):
                child.stdin.write(pickle.dumps((index, files, within_s)))
            code = child.wait()
    finally:
        ending.owns(None)
    if code not in (WHOLE, LEFT) and not ending.is_set():
        log.warning("recall.child_broke", file=index.name, code=code)
    if code == WHOLE:
        return "whole"
    return "left" if code == LEFT else "broken"


# Turns come first where the machine has too little for both.
NICE: Final = 5
# Between two transactions it rests for a part of the time that it worked: the disk is not its own, either.
RESTS: Final = 0.25


def main() -> None:
    """Bring the index up, and say by the exit code how far it came."""
    os.nice(NICE)
    try:
        path, files, within_s = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the gateway itself
    except EOFError:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    index = WordIndex(path)
    update = Update(
        index,
        files,
        rest=lambda took_s: durable.pause(RESTS * took_s),
        until=None if within_s is None else durable.monotonic() + within_s,
        batch_lines=BULK_LINES,
    )
    whole = update.run()
    index.close()
    # The thread that listens cannot be ended otherwise.
    os._exit(WHOLE if whole else LEFT)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    # What is not written yet is rolled back, as after a kill.
    os._exit(LEFT)


if __name__ == "__main__":
    main()
