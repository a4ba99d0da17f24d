"""Starts one confined command, watches over it and all that it starts, and ends all of that with it.

A process of its own, run by its path; it imports nothing of ours. Its one argument says in JSON what to do.
Its end, however it comes, ends the command; the end of whoever started it ends it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

POLL_S = 0.05
NOT_STARTED = 125

_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_SET_SECCOMP, _FILTER = 22, 2
_DROP_BOUNDING, _CAPSET_VERSION = 24, 0x20080522
_SYS_LANDLOCK = 444
_NEW_IPC, _NEW_PID, _NEW_NET = 0x08000000, 0x20000000, 0x40000000
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAITED = _ENDING | {signal.SIGCHLD}
_OF_A_FILE = 0b1100000000000111

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def main() -> NoReturn:
    """Run the command to its end, and end with its exit code."""
    rules = json.loads(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    _die_with(rules["parent"], signal.SIGTERM)
    with suppress(OSError):
        os.setsid()
    _checked(libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")
    temp = tempfile.mkdtemp(prefix="chat-gateway-sandbox-") if rules["landlock"] else None
    try:
        code = _watched(rules, temp)
    finally:
        _end_all()
        if temp is not None:
            shutil.rmtree(temp, ignore_errors=True)
    os._exit(code)


def _watched(rules: dict[str, Any], temp: str | None) -> int:
    """Start the command, and wait until it ends or has to."""
    if rules["landlock"] and os.geteuid() == 0:
        # No limit of processes holds for root: the end of a namespace ends all of them at once.
        apart = _NEW_PID | _NEW_IPC | (0 if rules["network"] else _NEW_NET)
        _checked(libc.unshare(apart), "a namespace of processes of its own")
    alive, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _as_child(rules, temp, alive)
    os.close(alive)
    # The command's input and output end with the command.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while True:
        # A signal that came meanwhile is still waiting: it is blocked.
        got = signal.sigtimedwait(_WAITED, POLL_S)
        if got is not None and got.si_signo in _ENDING:
            return 128 + got.si_signo
        for pid, status in _ended():
            if pid == child:
                return _exit_code(status)
        over = _over(rules)
        if over:
            _say(over)
            return 128 + signal.SIGKILL


def _as_child(rules: dict[str, Any], temp: str | None, alive: int) -> NoReturn:
    """Become the command, or say why not."""
    try:
        _checked(libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
        # A launcher that died before that has let go of its end of the pipe.
        if select.select([alive], [], [], 0)[0]:
            os._exit(NOT_STARTED)
        if os.getpid() == 1:
            _first_of_namespace()
        _become(rules, temp)
    except OSError as error:
        _say(f"the command was not started: {error.filename or ''} {error.strerror}".replace("  ", " "))
    os._exit(NOT_STARTED)


def _first_of_namespace() -> None:
    """Start the command below, and be what its orphans come to; when it ends, the kernel ends them."""
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            os._exit(_exit_code(status))


def _become(rules: dict[str, Any], temp: str | None) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
    with suppress(OSError):
        os.nice(5)
    if temp is not None:
        os.environ["TMPDIR"] = temp
    for kind, most in rules["rlimits"]:
        _limit(kind, most)
    if rules["landlock"]:
        _limit(resource.RLIMIT_NPROC, _running() + rules["processes"])
    _checked(libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if rules["landlock"]:
        _drop_capabilities()
        _landlock(rules["landlock"], temp)
    os.chdir(rules["folder"])
    _filter(base64.b64decode(rules["filter"]))
    os.execvpe(rules["argv"][0], rules["argv"], os.environ)  # noqa: S606 - it is what it is for


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _drop_capabilities() -> None:
    """Let go of what root may; a program that root starts would otherwise have it again."""
    if os.geteuid():
        return
    for capability in range(64):
        libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPSET_VERSION, 0)
    _checked(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")


def _landlock(rules: dict[str, Any], temp: str | None) -> None:
    wanted = (ctypes.c_uint64 * 3)(rules["files"], rules["net"], rules["scoped"])
    ruleset = libc.syscall(_SYS_LANDLOCK, ctypes.byref(wanted), ctypes.c_size_t(24), 0)
    _checked(ruleset, "Landlock")
    places = list(rules["places"])
    if temp is not None:
        places.append([temp, rules["write"]])
    for path, access in places:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = access if os.path.isdir(path) else access & _OF_A_FILE  # noqa: PTH112 - no package here
        beneath = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        _checked(libc.syscall(_SYS_LANDLOCK + 1, ruleset, 1, beneath, 0), f"Landlock for {path}")
        os.close(place)
    _checked(libc.syscall(_SYS_LANDLOCK + 2, ruleset, 0), "Landlock")
    os.close(ruleset)


def _filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("steps", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    steps = Program(len(program) // 8, program)
    _checked(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(steps), 0, 0), "seccomp")


def _die_with(parent: int, number: int) -> None:
    """Be sent a signal when the parent dies; one that died before this was asked for is noticed as well."""
    _checked(libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(NOT_STARTED)


def _over(rules: dict[str, Any]) -> str:
    """Say which limit all processes together are over."""
    memory, tasks = 0, 0
    for pid in _descendants(os.getpid()):
        used, threads = _used(pid)
        memory += used
        tasks += threads
    if memory > rules["memory"]:
        return f"ended: over {rules['memory'] // 2**20} MB of memory"
    # Two more are the sandbox's own.
    if tasks > rules["processes"] + 2:
        return f"ended: over {rules['processes']} processes"
    return ""


def _used(pid: int) -> tuple[int, int]:
    """Return the bytes that a process holds, files that it maps aside, and its threads."""
    memory, threads = 0, 0
    with suppress(OSError, ValueError), Path(f"/proc/{pid}/status").open("rb") as status:
        for line in status:
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                memory += int(line.split()[1]) * 1024
            elif line.startswith(b"Threads:"):
                threads = int(line.split()[1])
    return memory, threads


def _running() -> int:
    """Count the threads of this user, which its limit counts as well."""
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError, ValueError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += _used(int(entry.name))[1]
    return count


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, each before its own children."""
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """List the children of a process; of one that is gone, none."""
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
    while True:
        left = list(_descendants(os.getpid()))
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0 if left else os.WNOHANG)
        except ChildProcessError:
            return


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"[sandbox] {text}\n".encode())


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        _say(f"the command was not started: {problem.filename or ''} {problem.strerror}".replace("  ", " "))
        os._exit(NOT_STARTED)
