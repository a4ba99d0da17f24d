"""Confines a command by bubblewrap: namespaces in which nothing is there but what it may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import durable
from session.tools.sandbox.places import PROGRAMS, closed_below, readable_of, settings_of
from session.tools.sandbox.rules import Rules, Wrapped
from session.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX
from session.tools.sandbox.starting import started_by_launcher

# The launcher counts as well. dash and bash name it differently.
_LIMITED = 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0" 2>/dev/null; exec "$@"'
_USER = "1000"
_INTERNET = (AF_INET, AF_INET6, AF_NETLINK)


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """``program`` is bubblewrap's path."""

    program: str
    name: ClassVar[str] = "bubblewrap"

    def wrap(self, command: Sequence[str], rules: Rules) -> Wrapped:
        """Return what runs ``command`` where the system's programs and its folder are all that there is.

        Raises:
            NoSandbox: these rules cannot be kept here.
        """
        inner = ("/bin/sh", "-c", _LIMITED, str(rules.limits.processes), *command)
        # On the machine's own network are sockets of other programs that no file stands for.
        families = _INTERNET if rules.network else (AF_UNIX, *_INTERNET)
        argv = (self.program, *_namespaces(rules), *_places(rules), "--", *inner)
        return started_by_launcher(argv, rules, families=families, landlock=None, temp="/tmp")  # noqa: S108


def _namespaces(rules: Rules) -> list[str]:
    apart = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if not rules.network:
        apart.append("--unshare-net")
    identity = ["--uid", _USER, "--gid", _USER, "--hostname", "sandbox"]
    return [*apart, "--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", *identity]


def _places(rules: Rules) -> list[str]:
    size, folder = str(rules.limits.temp_bytes), str(rules.folder)
    argv = [*_programs(), "--proc", "/proc", "--dev", "/dev"]
    argv += ["--size", size, "--tmpfs", "/dev/shm", "--size", size, "--tmpfs", "/tmp"]  # noqa: S108
    if any(path.is_relative_to("/var/tmp") for path in (*rules.readable, rules.folder)):  # noqa: S108
        # Nothing can be mounted below a link.
        argv += ["--size", size, "--tmpfs", "/var/tmp"]  # noqa: S108
    else:
        argv += ["--symlink", "/tmp", "/var/tmp"]  # noqa: S108
    for path in settings_of(rules):
        argv += ["--ro-bind", str(path), str(path)]
    for path in readable_of(rules):
        argv += ["--ro-bind", str(path), str(path)]
    argv += ["--bind", folder, folder]
    for closed in closed_below(rules):
        # It has to be there, or the command could put something in its place.
        durable.make_folder(closed)
        argv += ["--size", "4096", "--tmpfs", str(closed), "--remount-ro", str(closed)]
    sealed = ("/proc", "/dev", "/")
    return [*argv, *(word for path in sealed for word in ("--remount-ro", path)), "--chdir", folder]


def _programs() -> list[str]:
    argv = []
    for path in map(Path, PROGRAMS):
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            argv += ["--ro-bind", str(path), str(path)]
    return argv
