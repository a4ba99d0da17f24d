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
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

POLL_S = 0.05
# While nothing changes, as with a server that waits for a request.
REST_S = 0.2
NOT_STARTED = 125

_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_SET_SECCOMP, _FILTER = 22, 2
_CAPSET_VERSION = 0x20080522
_SYS_LANDLOCK = 444
# What the sandbox itself consists of comes on top.
_OURS = 4
_MOST_FILES = 2**20
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAITED = _ENDING | {signal.SIGCHLD}
_OF_A_FILE = 0b1100000000000111
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def main() -> NoReturn:
    """Run the command to its end, and end with its exit code."""
    if 0 in os.getresuid():
        # Whatever a sandbox forgot would be the whole machine.
        raise OSError(0, "is not a user for commands", "root")
    rules = json.loads(sys.argv[1])
    # Not every event loop starts a process without what it has open itself.
    os.closerange(3, _MOST_FILES)
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
            # What stays of it is no word about the command.
            with suppress(Exception):
                _remove(temp)
    os._exit(code)


def _watched(rules: dict[str, Any], temp: str | None) -> int:
    """Start the command, and wait until it ends or has to."""
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
    wait_s, before = POLL_S, (0, 0)
    while True:
        # A signal that came meanwhile is still waiting: it is blocked.
        got = signal.sigtimedwait(_WAITED, wait_s)
        if got is not None and got.si_signo in _ENDING:
            return 128 + got.si_signo
        for pid, status in _ended():
            if pid == child:
                return _exit_code(status)
        used = _used_by_all(rules)
        if used[0] > rules["memory"]:
            _say(f"ended: over {rules['memory'] // 2**20} MB of memory")
            return 128 + signal.SIGKILL
        if used[1] > rules["processes"] + _OURS:
            _say(f"ended: over {rules['processes']} processes")
            return 128 + signal.SIGKILL
        wait_s = min(wait_s * 1.5, REST_S) if used == before else POLL_S
        before = used


def _as_child(rules: dict[str, Any], temp: str | None, alive: int) -> NoReturn:
    """Become the command, or say why not."""
    try:
        _checked(libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")
        # A launcher that died before that has let go of its end of the pipe.
        if select.select([alive], [], [], 0)[0]:
            os._exit(NOT_STARTED)
        _become(rules, temp)
    except Exception as error:  # noqa: BLE001 - what follows in the launcher is not for its child
        _say(f"the command was not started: {_words(error)}")
    os._exit(NOT_STARTED)


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
    _drop_capabilities()
    if rules["landlock"]:
        _landlock(rules["landlock"], temp)
    os.chdir(rules["folder"])
    _filter(base64.b64decode(rules["filter"]))
    os.execvpe(rules["argv"][0], rules["argv"], os.environ)  # noqa: S606 - it is what it is for


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _drop_capabilities() -> None:
    """Drop what a service may have been given beside its user."""
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


def _used_by_all(rules: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes and the threads of all processes together, as far as a limit is not yet passed."""
    memory, tasks = 0, 0
    for pid in _descendants(os.getpid()):
        used, threads = _used(pid)
        memory += used
        tasks += threads
        # Those that fork without end would keep the count from ending.
        if memory > rules["memory"] or tasks > rules["processes"] + _OURS:
            break
    return memory, tasks


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
    left = _children(pid)
    while left:
        child = left.pop()
        yield child
        left += _children(child)


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
    with suppress(ChildProcessError):
        while True:
            # The first of a namespace takes all others with it, and waits for them.
            for pid in _descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
            for _ in _ended():
                pass


def _remove(top: str) -> None:
    """Remove a folder with all that is in it, links as such; what cannot be removed stays.

    A command can make it deeper than any path or stack is: what lies deeper is brought to the top first.
    """
    _let_in(top, None)
    folder = os.open(top, os.O_RDONLY | _FOLDER)
    fresh, number, left = os.urandom(8).hex(), count(), os.listdir(folder)  # noqa: PTH208 - by number
    while left:
        name = left.pop()
        with suppress(OSError):
            if _is_gone(name, folder):
                continue
            within = os.open(name, os.O_RDONLY | _FOLDER, dir_fd=folder)
            try:
                for each in os.listdir(within):  # noqa: PTH208 - by number
                    if not _is_gone(each, within):
                        upper = f"{fresh}-{next(number)}"
                        os.rename(each, upper, src_dir_fd=within, dst_dir_fd=folder)
                        left.append(upper)
            finally:
                os.close(within)
            os.rmdir(name, dir_fd=folder)
    os.close(folder)
    os.rmdir(top)  # noqa: PTH106 - no package here


def _is_gone(name: str, folder: int) -> bool:
    """Remove what is no folder, or an empty one; of any other, let its owner in."""
    with suppress(IsADirectoryError):
        os.unlink(name, dir_fd=folder)
        return True
    _let_in(name, folder)
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder)
        return True
    return False


def _let_in(name: str, folder: int | None) -> None:
    """Let the owner change a folder that a command shut; by its number, so that no link is followed."""
    with suppress(OSError):
        shut = os.open(name, os.O_PATH | _FOLDER, dir_fd=folder)
        try:
            Path(f"/proc/self/fd/{shut}").chmod(0o700)
        finally:
            os.close(shut)


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


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or ''} {error.strerror}".strip()
    return type(error).__name__


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        _say(f"the command was not started: {_words(problem)}")
        os._exit(NOT_STARTED)
