"""Starts bubblewrap with one command, watches over all that it starts, and ends all of that with it.

A process of its own, run by its path; it imports nothing of ours. Its first argument says in JSON what to
keep to, the others are what to start. Its end, however it comes, ends the command; the end of whoever
started it ends it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

# Where bubblewrap reads the seccomp filter of the command.
FILTER_FD = 3
POLL_S = 0.05
# While nothing changes, as with a server that waits for a request.
REST_S = 0.2
NOT_STARTED = 125

_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_AMBIENT_CAPABILITIES, _CLEAR_ALL = 47, 4
# What the sandbox itself consists of comes on top.
_OURS = 4
_MOST_FILES = 2**20
# The most that the kernel holds for one, as what was written to it and not yet read: net.core.wmem_max twice.
_SOCKET_BYTES = 2 * 212_992
_HELD = (b"RssAnon:", b"RssShmem:", b"VmPTE:", b"VmSwap:")
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAITED = _ENDING | {signal.SIGCHLD}


def main() -> NoReturn:
    """Run the command to its end, and end with its exit code."""
    if 0 in os.getresuid():
        # Whatever a sandbox forgot would be the whole machine.
        raise OSError(0, "is not a user for commands", "root")
    order, argv = json.loads(sys.argv[1]), sys.argv[2:]
    # Not every event loop starts a process without what it has open itself.
    os.closerange(3, _MOST_FILES)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    _die_with(order["parent"], signal.SIGTERM)
    with suppress(OSError):
        os.setsid()
    _prctl(_SET_SUBREAPER, 1)
    try:
        code = _watched(order, argv)
    finally:
        _end_all()
    os._exit(code)


def _watched(order: dict[str, Any], argv: list[str]) -> int:
    alive, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _as_child(order, argv, alive)
    os.close(alive)
    # The command's input and output end with the command.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    wait_s, before = POLL_S, (0, 0)
    while True:
        # A signal that came meanwhile is still waiting: it is blocked.
        got = signal.sigtimedwait(_WAITED, wait_s)
        if got is not None and got.si_signo in _ENDING:
            return 128 + got.si_signo
        for pid, status in _ended():
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        used = _used_by_all(order)
        if used[0] > order["memory_bytes"]:
            _say(f"ended: over {order['memory_bytes'] // 2**20} MB of memory")
            return 128 + signal.SIGKILL
        if used[1] > order["processes"] + _OURS:
            _say(f"ended: over {order['processes']} processes")
            return 128 + signal.SIGKILL
        wait_s = min(wait_s * 1.5, REST_S) if used == before else POLL_S
        before = used


def _as_child(order: dict[str, Any], argv: list[str], alive: int) -> NoReturn:
    try:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        # A launcher that died before that has let go of its end of the pipe.
        if select.select([alive], [], [], 0)[0]:
            os._exit(NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
        with suppress(OSError):
            os.nice(5)
        # Where memory runs short the kernel ends the command first: it may hold some that no process has.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        _limit(resource.RLIMIT_CORE, 0)
        # What is only reserved does not count, as it would with RLIMIT_AS: some languages reserve much.
        _limit(resource.RLIMIT_DATA, order["memory_bytes"])
        _limit(resource.RLIMIT_FSIZE, order["file_bytes"])
        _limit(resource.RLIMIT_NOFILE, order["open_files"])
        _prctl(_SET_NO_NEW_PRIVILEGES, 1)
        # What a service was given beside its user: bubblewrap starts with none.
        _prctl(_AMBIENT_CAPABILITIES, _CLEAR_ALL)
        _hand_over(base64.b64decode(order["filter"]))
        os.execvp(argv[0], argv)  # noqa: S606 - it is what it is for
    except Exception as error:  # noqa: BLE001 - what follows in the launcher is not for its child
        _say(f"the command was not started: {_words(error)}")
    os._exit(NOT_STARTED)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _hand_over(program: bytes) -> None:
    file = os.memfd_create("filter")
    os.write(file, program)
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, FILTER_FD)


def _die_with(parent: int, number: int) -> None:
    """Be sent a signal when the parent dies; one that died before this was asked for is noticed as well."""
    _prctl(_SET_DEATH_SIGNAL, number)
    if os.getppid() != parent:
        os._exit(NOT_STARTED)


def _used_by_all(order: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes and the threads of all processes together, as far as a limit is not yet passed.

    What a process writes to a socket and nobody reads is memory of no process: each socket counts in full.
    """
    memory, tasks = 0, 0
    sockets = set[str]()
    for number, pid in enumerate(_descendants(os.getpid())):
        used, threads = _used(pid)
        memory += used
        tasks += threads
        # The first two are bubblewrap's own; the second is in the namespaces.
        if number == 1 and not order["network"]:
            memory += _sockets_around(pid) * _SOCKET_BYTES
        elif number > 1 and order["network"]:
            sockets |= _sockets_of(pid, order["open_files"])
        # Those that fork without end would keep the count from ending.
        if (
            memory + len(sockets) * _SOCKET_BYTES > order["memory_bytes"]
            or tasks > order["processes"] + _OURS
        ):
            break
    return memory + len(sockets) * _SOCKET_BYTES, tasks


def _used(pid: int) -> tuple[int, int]:
    memory, threads = 0, 0
    with suppress(OSError, ValueError), Path(f"/proc/{pid}/status").open("rb") as status:
        for line in status:
            if line.startswith(_HELD):
                memory += int(line.split()[1]) * 1024
            elif line.startswith(b"Threads:"):
                threads = int(line.split()[1])
    return memory, threads


def _sockets_of(pid: int, most: int) -> set[str]:
    """Name the sockets that a process has open; ``most`` where it hides them."""
    found = set[str]()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(entry.path))  # noqa: PTH115 - of very many
    except PermissionError:
        # One that has ended and was not waited for yet belongs to root, and has nothing open.
        if _used(pid) not in ((0, 0), (0, 1)):
            return {f"{pid}:{number}" for number in range(most)}
    except OSError:
        pass
    return {name for name in found if name.startswith("socket:")}


def _sockets_around(pid: int) -> int:
    """Count the Unix sockets of a process's network namespace, those too that nobody has open."""
    with suppress(OSError), Path(f"/proc/{pid}/net/unix").open("rb") as listed:
        return sum(1 for _ in islice(listed, 1, None))
    return 0


def _descendants(pid: int) -> Iterator[int]:
    left = _children(pid)
    while left:
        child = left.pop()
        yield child
        left += _children(child)


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are enough
        found = []
        for thread in threads:
            found += Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()
        return [int(each) for each in found]
    except OSError:
        return []


def _end_all() -> None:
    """Kill whatever is left below, until nothing is; what forks meanwhile comes to us, and is found then."""
    with suppress(ChildProcessError):
        while True:
            # The first of a namespace takes all others with it, and waits for them.
            for pid in _descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
            for _ in _ended():
                pass


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"[sandbox] {text}\n".encode())


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or ''} {error.strerror}".strip()
    return type(error).__name__


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        _say(f"the command was not started: {_words(problem)}")
        os._exit(NOT_STARTED)
