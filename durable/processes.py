"""Processes that work for this one, with nothing of its environment."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

PIPE, NOTHING = subprocess.PIPE, subprocess.DEVNULL
_NO_ENV: Mapping[str, str] = MappingProxyType({})


def spawn(argv: Sequence[str], *, stdout: int = PIPE) -> subprocess.Popen[bytes]:
    """Start a helper, for threads: it reads a pipe, and Ctrl-C at this terminal is not for it.

    Args:
        argv: the program and its words; no shell reads them.
        stdout: what it says: ``PIPE``, which holds nothing back, or ``NOTHING``.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(  # noqa: S603 - each caller says what it starts
        argv, stdin=PIPE, stdout=stdout, stderr=NOTHING, bufsize=0, env={}, start_new_session=True
    )


async def spawn_async(
    argv: Sequence[str],
    *,
    stdin: int = PIPE,
    stdout: int = PIPE,
    stderr: int = NOTHING,
    env: Mapping[str, str] = _NO_ENV,
    cwd: Path | str | None = None,
    apart: bool = False,
) -> asyncio.subprocess.Process:
    """Start a process, for a loop.

    Args:
        argv: the program and its words; no shell reads them.
        stdin: ``PIPE`` or ``NOTHING``, as are the other two.
        stdout: what it says.
        stderr: what it complains of.
        env: all that it sees of an environment.
        cwd: where it works; None: where this process does.
        apart: it gets a session of its own, so that Ctrl-C at this terminal is not for it.

    Raises:
        OSError: it cannot be started.
        ValueError: a word or a name of the environment has a null byte.
    """
    return await asyncio.create_subprocess_exec(
        *argv, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), cwd=cwd, start_new_session=apart
    )
