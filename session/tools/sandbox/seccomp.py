"""The seccomp filter of a confined command, compiled by libseccomp."""

from __future__ import annotations

import errno
import os
import socket
from functools import cache

from session.tools.sandbox.rules import NoSandbox

CURE = "apt-get install libseccomp2"
# They reach what is not a file and no namespace bounds, or hold memory that is not counted.
_REFUSED = (
    *("add_key", "bpf", "keyctl", "memfd_secret", "msgget", "perf_event_open", "request_key", "semget"),
    *("shmget", "userfaultfd"),
)
# Programs know how to go on without these.
_UNSUPPORTED = ("io_uring_setup", "memfd_create")
_INTERNET = {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
_FAMILIES = 46
# Set-user-ID and set-group-ID: the file would run as the gateway's user for everybody who reaches it.
_SET_ID = (0o4000, 0o2000)
# Its number on every machine; versions of libseccomp before 2.5.5 do not know its name.
_FCHMODAT2 = 452
_MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, _FCHMODAT2: 2}
_SHARED_ANONYMOUS = 0x21


@cache
def program(*, network: bool) -> bytes:
    """Return the filter as the kernel takes it, an array of ``struct sock_filter``.

    It expects the namespaces of bubblewrap around the command. The first call starts a process and
    takes some 100 ms.

    Args:
        network: whether the command shares the network of the machine.

    Raises:
        NoSandbox: libseccomp is missing or too old.
    """
    try:
        return _compiled(network=network)
    except (RuntimeError, OSError) as error:
        raise NoSandbox(f"libseccomp cannot be used: {error}", hint=CURE) from error


def _compiled(*, network: bool) -> bytes:
    # The import raises RuntimeError where the library is missing.
    import pyseccomp as scmp

    # Calls by another machine's numbers, which no rule sees, end the thread.
    rules = scmp.SyscallFilter(scmp.ALLOW)
    refused = scmp.ERRNO(errno.EPERM)
    for name in _REFUSED:
        rules.add_rule(refused, name)
    for name in _UNSUPPORTED:
        rules.add_rule(scmp.ERRNO(errno.ENOSYS), name)
    # Sockets of other programs on the machine's network have names that no file stands for.
    families = _INTERNET if network else {socket.AF_UNIX, *_INTERNET}
    for family in set(range(_FAMILIES)) - families:
        rules.add_rule(scmp.ERRNO(errno.EACCES), "socket", scmp.Arg(0, scmp.EQ, family))
    rules.add_rule(scmp.ERRNO(errno.EACCES), "socket", scmp.Arg(0, scmp.GE, _FAMILIES))
    for call, argument in _MODE_ARGUMENT.items():
        for bit in _SET_ID:
            rules.add_rule(refused, call, scmp.Arg(argument, scmp.MASKED_EQ, bit, bit))
    # Its pages are of no process once they are unmapped, and stay as long as any part is mapped.
    shared = scmp.Arg(3, scmp.MASKED_EQ, _SHARED_ANONYMOUS, _SHARED_ANONYMOUS)
    rules.add_rule(refused, "mmap", shared)
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
