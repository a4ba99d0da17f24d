"""Which form a workspace has: one number over all of its files, looked at before a start touches any."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

import orjson
import structlog

import durable
from gateway.errors import NewerState

log = structlog.get_logger("workspace")
# It is raised by a change of any file that older programs would read wrongly.
FORM: Final = 1
FILE: Final = "workspace.json"


def check(state: Path) -> None:
    """Let pass what this program knows; a workspace without a number is older than the numbers.

    Raises:
        NewerState: a newer version worked on it; nothing was touched.
    """
    _read(state / FILE)


def note(state: Path) -> None:
    """Note the form and the program that works on the workspace from now on, where that is news."""
    path, ours = state / FILE, {"v": FORM, "program": version("chat-gateway")}
    try:
        if _read(path) != ours:
            durable.replace(path, orjson.dumps(ours))
    except OSError as error:
        # A start that has the disk for nothing else goes on without; the next one notes it.
        log.warning("workspace.unnoted", error=str(error))


def _read(path: Path) -> dict[str, object]:
    try:
        return durable.decode_state(path.read_bytes(), FORM, "the workspace", error=NewerState)
    except (FileNotFoundError, NotADirectoryError, durable.Damaged):
        return {}
