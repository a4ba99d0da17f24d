"""Confines a command by bubblewrap: namespaces in which nothing is there but what it may see."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import durable
from session.tools.sandbox import seccomp
from session.tools.sandbox.launcher import FILTER_FD
from session.tools.sandbox.rules import NoSandbox, Rules, Wrapped

LAUNCHER = Path(__file__).with_name("launcher.py")
# The kernel takes no argument that is longer; its end is a NUL.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/libx32", "/lib64")
# One by one: the folder also holds shadow, keys, and the configuration of whatever else runs here.
_SETTINGS = (
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
_NETWORK_SETTINGS = (
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/hosts",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of the user namespace alone is the number counted there. dash and bash name it differently.
_LIMITED = 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0" 2>/dev/null; exec "$@"'
_USER = "1000"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """``program`` is bubblewrap's path."""

    program: str
    name: ClassVar[str] = "bubblewrap"

    def wrap(self, command: Sequence[str], rules: Rules) -> Wrapped:
        """Return what runs ``command``, program first, confined to ``rules``; PATH is searched for it.

        Raises:
            NoSandbox: these rules cannot be kept here, or the command is too long.
        """
        if max(len(os.fsencode(each)) for each in command) > MAX_ARGUMENT_BYTES:
            raise NoSandbox("the command is over 128 kB", hint="write it to a file and run that")
        order = {
            "filter": base64.b64encode(seccomp.program(network=rules.network)).decode(),
            "network": rules.network,
            "parent": os.getpid(),
            **asdict(rules.limits),
        }
        confined = (self.program, *_namespaces(rules), *_mounts(rules), "--seccomp", str(FILTER_FD), "--")
        inner = ("/bin/sh", "-c", _LIMITED, str(rules.limits.processes), *command)
        return Wrapped(
            argv=(sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(order), *confined, *inner),
            env=_environment(rules),
            cwd=rules.folder,
        )


def _namespaces(rules: Rules) -> list[str]:
    apart = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not rules.network:
        apart.append("--unshare-net")
    identity = ["--uid", _USER, "--gid", _USER, "--hostname", "sandbox"]
    return [*apart, "--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", *identity]


def _mounts(rules: Rules) -> list[str]:
    size, folder = str(rules.limits.temp_bytes), str(rules.folder)
    argv = [*_programs(), "--proc", "/proc", "--dev", "/dev"]
    # Shared pages of /dev/zero would be memory of no process. The other reads alike and cannot be mapped.
    argv += ["--dev-bind", "/dev/full", "/dev/zero"]
    argv += ["--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"]  # noqa: S108
    if any(path.is_relative_to("/var/tmp") for path in (*rules.readable, rules.folder)):  # noqa: S108
        # Nothing can be mounted below a link.
        argv += ["--size", size, "--tmpfs", "/var/tmp"]  # noqa: S108
    else:
        argv += ["--symlink", "/tmp", "/var/tmp"]  # noqa: S108
    for path in (*_settings(rules), *_readable(rules)):
        argv += ["--ro-bind", str(path), str(path)]
    argv += ["--bind", folder, folder]
    for closed in (rules.folder / name for name in rules.closed):
        # It has to be there, or the command could put something in its place.
        durable.make_folder(closed)
        argv += ["--size", "4096", "--tmpfs", str(closed), "--remount-ro", str(closed)]
    sealed = ("/proc", "/dev", "/")
    return [*argv, *(word for path in sealed for word in ("--remount-ro", path)), "--chdir", folder]


def _programs() -> list[str]:
    argv = []
    for path in map(Path, _PROGRAMS):
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            argv += ["--ro-bind", str(path), str(path)]
    return argv


def _settings(rules: Rules) -> list[Path]:
    """List what is there of the system's settings that a command may read."""
    names = (*_SETTINGS, *_NETWORK_SETTINGS) if rules.network else _SETTINGS
    return [Path(name) for name in names if os.path.exists(name)]  # noqa: PTH110 - names, not paths yet


def _readable(rules: Rules) -> Sequence[Path]:
    """Return ``rules.readable``, checked; links are followed.

    Raises:
        NoSandbox: one is not there, holds something private, or the folder does.
    """
    private = [Path(os.path.realpath(path)) for path in rules.private]
    folder = Path(os.path.realpath(rules.folder))
    for path in rules.readable:
        if not path.exists():
            raise NoSandbox(f"{path} is in readable but does not exist", hint="use a path that exists")
    for path in (*map(Path, _PROGRAMS), *rules.readable):
        real = Path(os.path.realpath(path))
        for hidden in private:
            if hidden.is_relative_to(real) or real.is_relative_to(hidden):
                raise NoSandbox(
                    f"{path}, which commands may read, overlaps {hidden}, which they may not",
                    hint="keep workspace and configuration in folders without programs",
                )
    if any(hidden.is_relative_to(folder) for hidden in private):
        raise NoSandbox(
            f"{folder} contains the workspace, so a command there could read all of it",
            hint="run it in a separate folder",
        )
    return rules.readable


def _environment(rules: Rules) -> dict[str, str]:
    """Return the environment of a command: nothing of ours, then what the rules add."""
    clean = {
        "HOME": str(rules.folder),
        "LANG": "C.UTF-8",
        "PATH": _PATH,
        "SHELL": "/bin/sh",
        "TERM": "dumb",
        "TMPDIR": "/tmp",  # noqa: S108 - of the sandbox
        "USER": "sandbox",
    }
    return {**clean, **rules.env}
