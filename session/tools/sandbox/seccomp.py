"""Writes the filter of system calls that a confined command runs under, as the kernel reads it; pure."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

_NAMES = """
    socket io_uring_setup bpf perf_event_open userfaultfd keyctl add_key request_key memfd_create memfd_secret
    shmget msgget semget mq_open unshare setns clone clone3 fchmodat fchmodat2 fchownat setxattr lsetxattr
    removexattr lremovexattr setxattrat removexattrat file_setattr utimensat prlimit64 sched_setaffinity
    sched_setscheduler sched_setparam sched_setattr setpriority ioprio_set inotify_add_watch fanotify_init
    fchmod fchown fsetxattr fremovexattr
    shmat shmctl shmdt semop semctl semtimedop msgsnd msgrcv msgctl
"""
_X86_64 = """
    41 425 321 298 323 250 248 249 319 447 29 68 64 240 272 308 56 435 268 452 260 188 189 197 198 463 466 469
    280 302 203 144 142 314 141 251 254 300
    91 93 190 199
    30 31 67 65 66 220 69 70 71
"""
_AARCH64 = """
    198 425 280 241 282 219 217 218 279 447 194 186 190 180 97 268 220 435 53 452 54 5 6 14 15 463 466 469
    88 261 122 119 118 274 140 30 27 262
    52 55 7 16
    196 195 197 193 191 192 189 188 187
"""
# What 64-bit ARM never had: older ways to say the same.
_ONLY_X86_64 = {"chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "utimes": 235, "futimesat": 261}


def _numbers(table: str) -> dict[str, int]:
    return dict(zip(_NAMES.split(), map(int, table.split()), strict=True))


_MACHINES = {
    "x86_64": (0xC000003E, _numbers(_X86_64) | _ONLY_X86_64),
    "aarch64": (0xC00000B7, _numbers(_AARCH64)),
}
MACHINES = tuple(_MACHINES)

_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
# Set-user-ID and set-group-ID: the file would run as the gateway's user for everybody who reaches it.
_SET_ID = 0o6000
_MODE_OF = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}

# They reach what is not a file and no namespace bounds, or hold memory that no limit counts.
_ALWAYS = """
    io_uring_setup bpf perf_event_open userfaultfd keyctl add_key request_key memfd_create memfd_secret shmget
"""
# Landlock decides about opening and changing files by name, not about their modes, owners and times, nor
# about other processes of the same user. A file that is open for reading alone takes a mode, an owner and
# attributes as well; what others share by a number is reached without having been asked for.
_BESIDE_LANDLOCK = """
    msgget semget mq_open unshare setns fchmodat fchmodat2 fchownat chmod chown lchown setxattr lsetxattr
    removexattr lremovexattr setxattrat removexattrat file_setattr utime utimes futimesat inotify_add_watch
    fanotify_init fchmod fchown fsetxattr fremovexattr
    shmat shmctl shmdt semop semctl semtimedop msgsnd msgrcv msgctl
"""
# Calls that may name another process: which argument has to be 0, the caller itself.
_OF_ITSELF = {
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setscheduler": 0,
    "sched_setparam": 0,
    "sched_setattr": 0,
    "setpriority": 1,
    "ioprio_set": 1,
}


@dataclass(frozen=True, slots=True)
class _Step:
    code: int
    value: int
    yes: int = 0
    no: int = 0

    def packed(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.yes, self.no, self.value)


def program(machine: str, *, families: Sequence[int], landlock: bool) -> bytes:
    """Return the filter: an array of ``struct sock_filter``.

    Args:
        machine: as ``platform.machine()`` says, one of ``MACHINES``.
        families: the families of addresses for which sockets may be made.
        landlock: whether Landlock alone guards files and processes, no namespace.
    """
    code, numbers = _MACHINES[machine]
    steps = [
        _Step(_LOAD, _MACHINE_AT),
        _Step(_EQUAL, code, yes=1),
        _Step(_RETURN, _KILL),
        _Step(_LOAD, _NUMBER_AT),
        # The third set of calls on x86_64 would go by every number below.
        _Step(_AT_LEAST, _X32, no=1),
        _Step(_RETURN, _KILL),
    ]
    refused = _ALWAYS + _BESIDE_LANDLOCK if landlock else _ALWAYS
    for name in refused.split():
        if name in numbers:
            steps += _on(numbers[name], [_Step(_RETURN, _ERRNO | _answer(name))])
    steps += _on(numbers["socket"], _only(0, families, errno.EACCES))
    if landlock:
        for name, argument in _OF_ITSELF.items():
            steps += _on(numbers[name], _only(argument, [0], errno.EPERM))
        steps += _on(numbers["utimensat"], _times())
        # Its flags lie in memory, where no filter reads; libraries then take the older call.
        steps += _on(numbers["clone3"], [_Step(_RETURN, _ERRNO | errno.ENOSYS)])
        steps += _on(numbers["clone"], _without(0, _NEW_NAMESPACES))
    else:
        for name in numbers.keys() & _MODE_OF.keys():
            steps += _on(numbers[name], _without(_MODE_OF[name], _SET_ID))
    steps.append(_Step(_RETURN, _ALLOW))
    return b"".join(step.packed() for step in steps)


def _answer(name: str) -> int:
    """Return the error that programs know how to go on after."""
    return errno.ENOSYS if name in ("io_uring_setup", "memfd_create", "inotify_add_watch") else errno.EPERM


def _on(number: int, then: list[_Step]) -> list[_Step]:
    """Do ``then``, which returns in any case, for one call; the number stays loaded for the others."""
    return [_Step(_EQUAL, number, no=len(then)), *then]


def _only(argument: int, values: Sequence[int], error: int) -> list[_Step]:
    checks = [_Step(_EQUAL, value, yes=len(values) - at) for at, value in enumerate(values)]
    ends = [_Step(_RETURN, _ERRNO | error), _Step(_RETURN, _ALLOW)]
    return [_Step(_LOAD, _ARGUMENTS_AT + 8 * argument), *checks, *ends]


def _without(argument: int, mask: int) -> list[_Step]:
    return [
        _Step(_LOAD, _ARGUMENTS_AT + 8 * argument),
        _Step(_ANY_OF, mask, no=1),
        _Step(_RETURN, _ERRNO | errno.EPERM),
        _Step(_RETURN, _ALLOW),
    ]


def _times() -> list[_Step]:
    """Refuse to set times; nothing is done, and no error told, where an open file is to have those of now.

    So ``touch`` asks, after it made the file. Whether one may be written that is open is not to be seen here.
    """
    addresses = [_ARGUMENTS_AT + at for at in (8, 12, 16, 20)]
    zeros: list[_Step] = []
    for left, at in zip((3, 2, 1, 0), addresses, strict=True):
        zeros += [_Step(_LOAD, at), _Step(_EQUAL, 0, no=2 * left + 1)]
    return [*zeros, _Step(_RETURN, _ERRNO), _Step(_RETURN, _ERRNO | errno.EPERM)]
