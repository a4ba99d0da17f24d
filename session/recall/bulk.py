"""Takes much text into an index in a process of its own, beside which turns go on; for threads."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import structlog

from durable import NOTHING, spawn
from session.disk.layout import Layout
from session.recall.scope_files import ScopeFiles

log = structlog.get_logger("recall")

CHILD: Final = "session.recall.bulk_child"
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

    Args:
        index: the file that it writes.
        files: what it reads.
        ending: ends it when set.
        within_s: for how long it may read.

    Returns:
        Whether the index is whole, or more is left to read; ``broken`` where the process could not be
        started, was killed or failed.
    """
    asked = {
        "index": str(index),
        "workspace": str(files.layout.workspace),
        "memory": str(files.memory),
        "conversations": list(files.conversations),
        "agent": files.agent,
        "answers": {key: list(answers) for key, answers in files.answers.items()},
        "within_s": within_s,
    }
    try:
        child = spawn([sys.executable, "-I", "-m", CHILD], stdout=NOTHING)
    except OSError as error:
        log.warning("recall.child_not_started", error=str(error))
        return "broken"
    ending.owns(child)
    try:
        assert child.stdin is not None
        with child.stdin:
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(asked).encode() + b"\n")
            code = child.wait()
    finally:
        ending.owns(None)
    if code not in (WHOLE, LEFT) and not ending.is_set():
        log.warning("recall.child_broke", file=index.name, code=code)
    if code == WHOLE:
        return "whole"
    return "left" if code == LEFT else "broken"


def files_of(asked: dict[str, object]) -> ScopeFiles:
    """Return what a process was asked to read."""
    conversations, answers = asked["conversations"], asked["answers"]
    assert isinstance(conversations, list)
    assert isinstance(answers, dict)
    return ScopeFiles(
        Layout(Path(str(asked["workspace"]))),
        Path(str(asked["memory"])),
        [(str(key), str(stem)) for key, stem in conversations],
        str(asked["agent"]),
        {key: [tuple(each) for each in found] for key, found in answers.items()},
    )
