"""What of the system a confined command may read, and the environment it starts with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from session.tools.sandbox.rules import NoSandbox, Rules

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/libx32", "/lib64")
# One by one: the folder also holds shadow, keys, and the configuration of whatever else runs here.
SETTINGS = (
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/profile",
    "/etc/timezone",
)
NETWORK = (
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/hosts",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def settings_of(rules: Rules) -> list[Path]:
    """List what is there of the system's settings that a command may read."""
    names = (*SETTINGS, *NETWORK) if rules.network else SETTINGS
    return [Path(name) for name in names if os.path.exists(name)]  # noqa: PTH110 - names, not paths yet


def readable_of(rules: Rules) -> list[Path]:
    """Return what a command may read besides, checked; links are followed.

    Raises:
        NoSandbox: one is not there, holds something private, or the folder does.
    """
    private = [Path(os.path.realpath(path)) for path in rules.private]
    folder = Path(os.path.realpath(rules.folder))
    found = []
    for path in (*map(Path, PROGRAMS), *rules.readable):
        real = Path(os.path.realpath(path))
        if path in rules.readable:
            if not real.exists():
                raise NoSandbox(f"{path} is to be readable and is not there", hint="name a place that exists")
            found.append(path)
        for hidden in private:
            if hidden.is_relative_to(real) or real.is_relative_to(hidden):
                raise NoSandbox(
                    f"{path}, which a command may read, and {hidden}, which it may not, hold one another",
                    hint="keep the workspace and the configuration apart from programs",
                )
    if any(hidden.is_relative_to(folder) for hidden in private):
        raise NoSandbox(
            f"{folder} holds the workspace, so that a command there could read all of it",
            hint="let it run in a folder of its own",
        )
    return found


def environment(rules: Rules, *, temp: str) -> dict[str, str]:
    """Return the environment of a command: nothing of ours, then what the rules add."""
    clean = {
        "HOME": str(rules.folder),
        "LANG": "C.UTF-8",
        "PATH": PATH,
        "SHELL": "/bin/sh",
        "TERM": "dumb",
        "TMPDIR": temp,
        "USER": "sandbox",
    }
    return {**clean, **rules.env}


def closed_below(rules: Rules) -> Sequence[Path]:
    """Return the folders below the command's own that are somebody else's."""
    return [rules.folder / name for name in rules.closed]
