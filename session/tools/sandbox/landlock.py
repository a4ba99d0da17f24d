"""Confines a command by Landlock: the kernel refuses it what it may not open, a filter refuses the rest."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from session.tools.sandbox.places import PROGRAMS, readable_of, settings_of
from session.tools.sandbox.rules import NoSandbox, Rules, Wrapped
from session.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK
from session.tools.sandbox.starting import started_by_launcher

# Linux 6.12: before it a confined command could send signals to whatever else its user runs, this daemon too.
NEEDED_VERSION: Final = 6

_CREATE_RULESET, _ASK_VERSION = 444, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_ALL = (1 << 16) - 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _ALL & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL)
_TCP = 0b11
_SIGNALS_AND_ABSTRACT_SOCKETS = 0b11
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has, 0 without."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return max(int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)), 0)


@dataclass(frozen=True, slots=True)
class Landlock:
    """What bubblewrap does with less: no /proc and no /tmp, and ``chmod`` is refused."""

    name: ClassVar[str] = "landlock"

    def wrap(self, command: Sequence[str], rules: Rules) -> Wrapped:
        """Return what runs ``command`` after it gave up what ``rules`` do not allow.

        Raises:
            NoSandbox: these rules cannot be kept here.
        """
        if rules.closed:
            raise NoSandbox(
                f"Landlock cannot close a folder within {rules.folder.name}/, which all chats share",
                hint="apt-get install bubblewrap",
            )
        places: list[tuple[str, int]] = [(str(path), _READ) for path in _readable(rules)]
        places += [(path, _READ_FILE | _WRITE_FILE | _TRUNCATE) for path in _DEVICES if Path(path).exists()]
        places.append((str(rules.folder), _WRITE))
        kept: dict[str, Any] = {
            "files": _ALL,
            "net": 0 if rules.network else _TCP,
            "places": places,
            "scoped": _SIGNALS_AND_ABSTRACT_SOCKETS,
            "write": _WRITE,
        }
        families = (AF_INET, AF_INET6, AF_NETLINK) if rules.network else ()
        # The launcher makes the folder for temporary files, and says where.
        return started_by_launcher(command, rules, families=families, landlock=kept, temp="/nonexistent")


def _readable(rules: Rules) -> list[Path]:
    programs = [Path(name) for name in PROGRAMS if Path(name).exists()]
    return [*programs, *readable_of(rules), *settings_of(rules)]
