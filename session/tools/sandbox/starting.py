"""Turns a command with its rules into the process that starts it and watches over it."""

from __future__ import annotations

import base64
import json
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from session.tools.sandbox import seccomp
from session.tools.sandbox.places import environment
from session.tools.sandbox.rules import NoSandbox, Rules, Wrapped

LAUNCHER = Path(__file__).with_name("launcher.py")
# JSON may double what is in it, and make six bytes of a control character.
MAX_COMMAND_BYTES = 48 * 1024
# The kernel takes no argument that is longer; its end is a NUL.
_MAX_ARGUMENT_BYTES = 128 * 1024 - 1


def started_by_launcher(
    argv: Sequence[str],
    rules: Rules,
    *,
    families: Sequence[int],
    landlock: Mapping[str, Any] | None,
    temp: str,
) -> Wrapped:
    """Return the launcher with what it has to do.

    Args:
        argv: what the launcher becomes in its child.
        rules: what the command may touch.
        families: the families of addresses for which the command may make sockets.
        landlock: what Landlock is to allow, None where something else guards the files.
        temp: the folder for temporary files, as the command sees it.

    Raises:
        NoSandbox: no filter of system calls is known for this machine, or the command is too long.
    """
    machine = platform.machine()
    if machine not in seccomp.MACHINES:
        known = " and ".join(seccomp.MACHINES)
        raise NoSandbox(f"commands can be confined on {known}, not on {machine}", hint="leave the tool off")
    if sum(len(os.fsencode(each)) for each in argv) > MAX_COMMAND_BYTES:
        raise _too_long(f"the command is over {MAX_COMMAND_BYTES // 1024} kB")
    limits = rules.limits
    order = {
        "argv": list(argv),
        "filter": base64.b64encode(
            seccomp.program(machine, families=families, landlock=landlock is not None)
        ).decode(),
        "folder": str(rules.folder),
        "landlock": landlock,
        "memory": limits.memory_bytes,
        "network": rules.network,
        "parent": os.getpid(),
        "processes": limits.processes,
        "rlimits": [
            [resource.RLIMIT_CORE, 0],
            # What is only reserved does not count, as it would with RLIMIT_AS: some languages reserve much.
            [resource.RLIMIT_DATA, limits.memory_bytes],
            [resource.RLIMIT_FSIZE, limits.file_bytes],
            [resource.RLIMIT_NOFILE, limits.open_files],
        ],
    }
    # Letters stay as they are, odd bytes of paths too: the launcher reads them as they are written here.
    told = json.dumps(order, ensure_ascii=False)
    if len(os.fsencode(told)) > _MAX_ARGUMENT_BYTES:
        raise _too_long("the command holds too many characters that have to be written in a longer way")
    return Wrapped(
        argv=(sys.executable, "-I", "-S", str(LAUNCHER), told),
        env=environment(rules, temp=temp),
        cwd=rules.folder,
    )


def _too_long(problem: str) -> NoSandbox:
    return NoSandbox(problem, hint="put it into a file and run that")
