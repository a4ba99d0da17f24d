"""The filter of system calls refuses what it is to refuse, on both machines; it is run as the kernel does."""

from __future__ import annotations

import errno
import struct

import pytest

from session.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, MACHINES, program

ALLOWED, KILLED = 0x7FFF0000, 0x80000000
CODES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# read, socket, clone, utimensat, prlimit64, setpriority, chmod by path, io_uring_setup, unshare
CALLS = {
    "x86_64": (0, 41, 56, 280, 302, 141, 268, 425, 272),
    "aarch64": (63, 198, 220, 88, 261, 140, 53, 425, 97),
}
# What changes an open file, and what reaches for memory, semaphores and messages by their number.
DIRECT = {
    "x86_64": (91, 93, 190, 199, 30, 31, 65, 66, 67, 69, 70, 71, 220),
    "aarch64": (52, 55, 7, 16, 187, 188, 189, 191, 192, 193, 195, 196, 197),
}


def says(rules: bytes, code: int, number: int, *arguments: int) -> int:
    """Run the filter on one call, as the kernel does: it may jump forward alone and has to return."""
    data = struct.pack("=IIQ6Q", number, code, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("=HBBI", rules))
    loaded, at = 0, 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        if kind == 0x06:
            return int(value)
        if kind == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
            continue
        holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[kind]
        at += yes if holds else no


def refusal(error: int) -> int:
    return 0x00050000 | error


@pytest.mark.parametrize("machine", MACHINES)
def test_landlock_without_network(machine: str) -> None:
    rules, code = program(machine, families=(), landlock=True), CODES[machine]
    read, socket, clone, utimensat, prlimit, priority, chmod, uring, unshare = CALLS[machine]

    assert says(rules, code, read) == ALLOWED
    for family in (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, 40):
        assert says(rules, code, socket, family) == refusal(errno.EACCES)
    assert says(rules, code, clone, 0x1200011) == ALLOWED
    assert says(rules, code, clone, 0x10000011) == refusal(errno.EPERM)
    assert says(rules, code, utimensat, 5, 0, 0) == refusal(0)
    for path, times in ((0, 4096), (0, 1 << 40), (1 << 40, 0), (4096, 0), (4096, 4096)):
        assert says(rules, code, utimensat, 5, path, times) == refusal(errno.EPERM)
    assert says(rules, code, prlimit, 0) == ALLOWED
    assert says(rules, code, prlimit, 1) == refusal(errno.EPERM)
    assert says(rules, code, priority, 0, 0) == ALLOWED
    assert says(rules, code, priority, 0, 77) == refusal(errno.EPERM)
    assert says(rules, code, chmod) == refusal(errno.EPERM)
    assert says(rules, code, unshare) == refusal(errno.EPERM)
    assert says(rules, code, uring) == refusal(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_landlock_refuses_what_needs_no_name(machine: str) -> None:
    rules = program(machine, families=(), landlock=True)

    for number in DIRECT[machine]:
        assert says(rules, CODES[machine], number) == refusal(errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_in_namespaces_files_are_not_its_business(machine: str) -> None:
    families = (AF_INET, AF_INET6, AF_NETLINK)
    rules, code = program(machine, families=families, landlock=False), CODES[machine]
    _, socket, clone, utimensat, prlimit, _, chmod, uring, unshare = CALLS[machine]

    for family in families:
        assert says(rules, code, socket, family) == ALLOWED
    for family in (AF_UNIX, 40, 17):
        assert says(rules, code, socket, family) == refusal(errno.EACCES)
    for number in (clone, utimensat, prlimit, chmod, unshare, *DIRECT[machine]):
        assert says(rules, code, number, 0x10000000, 4096) == ALLOWED
    assert says(rules, code, uring) == refusal(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_in_another_machines_numbers_end_the_process(machine: str) -> None:
    rules = program(machine, families=(), landlock=True)
    other = next(code for name, code in CODES.items() if name != machine)

    assert says(rules, other, 0) == KILLED
    assert says(rules, 0x40000003, 0) == KILLED
    assert says(rules, CODES[machine], 0x40000000 + 41, AF_INET) == KILLED


@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_takes_programs_of_that_length(machine: str) -> None:
    assert len(program(machine, families=(AF_INET,), landlock=True)) // 8 < 4096
