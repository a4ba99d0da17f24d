"""The message of ``chat -m``: as it was given, and what is piped into this process."""

from __future__ import annotations

import os
import select
import stat
import sys

from gateway.cli import output
from gateway.errors import GatewayError

MAX_BYTES = 2**21
SILENT_S = 2.0
STDIN = "-"


def message(given: str) -> str:
    """Return the text to send: ``given``, with the text of a piped stdin below it; ``-`` is stdin alone.

    A pipe that stays silent for two seconds is left out, and that is said: it may be one that whoever started
    this process never closes.

    Raises:
        GatewayError: more than 2 MiB are piped.
    """
    if given == STDIN:
        return _read() if sys.stdin is not None else ""
    if not _is_piped():
        return given
    ready, _, _ = select.select([sys.stdin], [], [], SILENT_S)
    if not ready:
        output.words(f"stdin is open but sent nothing, so it is ignored; `-m {STDIN}` waits for it")
        return given
    text = _read()
    return f"{given}\n\n{text}" if text.strip() else given


def _is_piped() -> bool:
    """Say whether stdin is a pipe or a file; a terminal, ``/dev/null`` or nothing at all is not."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read() -> str:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise GatewayError(f"stdin is larger than {MAX_BYTES // 2**20} MiB", hint="send less")
    return data.decode("utf-8", "replace").rstrip("\n")
