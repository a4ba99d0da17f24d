"""What a sandbox is, and what it is told of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from session.errors import SessionError

MB = 2**20


class NoSandbox(SessionError):
    """A command cannot be confined here; nothing was run. ``hint`` is the cure."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use, with all that it starts; its time is whoever's who runs it.

    ``memory_bytes`` bounds the sum, ``processes`` counts threads as well, ``file_bytes`` bounds each file,
    ``temp_bytes`` what lies in /tmp, ``open_files`` is for each process.
    """

    memory_bytes: int = 1024 * MB
    processes: int = 128
    file_bytes: int = 256 * MB
    temp_bytes: int = 64 * MB
    open_files: int = 1024


@dataclass(frozen=True, slots=True)
class Rules:
    """What a command may touch.

    ``folder`` is where it starts, the only place it may write to; absolute, and there. ``closed`` names
    folders right below it that are somebody else's. ``readable`` names files and folders that it may read
    and execute besides the system's programs. ``private`` is what it may never read, the workspace and the
    configuration for example: a ``readable`` place that holds one of these, or lies in one, is refused.
    ``env`` is added to a clean environment; ``PATH`` in it takes the place of ours.
    """

    folder: Path
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    readable: Sequence[Path] = ()
    private: Sequence[Path] = ()
    closed: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What to start: ``argv`` with exactly ``env`` in the folder ``cwd``; no shell reads any of it.

    The process watches over the command and ends with its exit code, 128 and the signal where one ended it.
    ``SIGTERM`` ends it and everything that the command started; so does the end of the thread that started
    it, however that comes. It has to be started by the process that wrapped it.
    Where it had to end the command for a limit, its last line on stderr begins with ``[sandbox] ended:``;
    where nothing was run it is ``[sandbox] the command was not started:``, and the exit code 125.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
