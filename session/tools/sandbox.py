"""Confines a command with bubblewrap: what it may read and write, the network, memory, processes, output.

``SandboxOfDaemon`` finds one that works here, ``wrap`` turns a command into one that runs in it, ``run`` runs
it to its end. Code that talks with a process for long (a server on its stdio) takes ``wrap`` and starts it
itself; ``SIGTERM`` to that process ends everything that it started.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar

import durable
from durable import NOTHING, PIPE, spawn_async
from session.errors import SessionError
from session.tools.sandbox_launcher import FILTER_FD

MB = 2**20


class NoSandbox(SessionError):
    """A command cannot be confined here; nothing was run. ``hint`` is the cure."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use, with all that it starts; its time is whoever's who runs it.

    ``memory_bytes`` bounds the sum, ``processes`` counts threads as well, ``file_bytes`` bounds each file,
    ``temp_bytes`` what lies in /tmp, ``open_files`` is for each process.
    """

    memory_bytes: int = 1024 * MB
    processes: int = 128
    file_bytes: int = 256 * MB
    temp_bytes: int = 64 * MB
    open_files: int = 1024


@dataclass(frozen=True, slots=True)
class Rules:
    """What a command may touch.

    ``folder`` is where it starts, the only place it may write to; absolute, and there. ``closed`` names
    folders right below it that are somebody else's. ``readable`` names files and folders that it may read
    and execute besides the system's programs. ``private`` is what it may never read, the workspace and the
    configuration for example: a ``readable`` place that holds one of these, or lies in one, is refused.
    ``env`` is added to a clean environment; ``PATH`` in it takes the place of ours.
    """

    folder: Path
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    readable: Sequence[Path] = ()
    private: Sequence[Path] = ()
    closed: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What to start: ``argv`` with exactly ``env`` in the folder ``cwd``; no shell reads any of it.

    The process watches over the command and ends with its exit code, 128 and the signal where one ended it.
    ``SIGTERM`` ends it and everything that the command started; so does the end of the thread that started
    it, however that comes. It has to be started by the process that wrapped it.
    Where it had to end the command for a limit, its last line on stderr begins with ``[sandbox] ended:``;
    where nothing was run it is ``[sandbox] the command was not started:``, and the exit code 125.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path


LIBSECCOMP_CURE = "apt-get install libseccomp2"
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
def seccomp_filter(*, network: bool) -> bytes:
    """Return the filter as the kernel takes it, an array of ``struct sock_filter``.

    It expects the namespaces of bubblewrap around the command. The first call starts a process and
    takes some 100 ms.

    Raises:
        NoSandbox: libseccomp is missing or too old.
    """
    try:
        return _compiled(network=network)
    except (RuntimeError, OSError) as error:
        raise NoSandbox(f"libseccomp cannot be used: {error}", hint=LIBSECCOMP_CURE) from error


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


LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
# The kernel takes no argument that is longer; its end is a NUL.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/libx32", "/lib64")
# One by one: the folder also holds shadow, keys, and the configuration of whatever else runs here.
_SETTINGS = (
    "alternatives bash.bashrc group ld.so.cache ld.so.conf ld.so.conf.d localtime magic mime.types "
    "nsswitch.conf os-release passwd profile timezone"
)
_NETWORK_SETTINGS = "ca-certificates gai.conf hosts protocols resolv.conf services ssl/certs ssl/openssl.cnf"
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
            "filter": base64.b64encode(seccomp_filter(network=rules.network)).decode(),
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
    names = f"{_SETTINGS} {_NETWORK_SETTINGS}" if rules.network else _SETTINGS
    return [path for name in names.split() if (path := Path("/etc", name)).exists()]


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


MAX_OUTPUT_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_GRACE_S = 5.0
_NOTE_BYTES = 64


class Output:
    """What a command wrote to one of its outputs: the first and the last bytes, however much it was."""

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self._half = most_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take what came next."""
        self.bytes += len(data)
        fits = self._half - len(self._head)
        self._head += data[:fits]
        self._tail += data[fits:] if fits > 0 else data
        del self._tail[: -self._half]

    def text(self) -> str:
        """Return it as text, with a line where the middle was left out."""
        left_out = self.bytes - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        ends = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"\n[… {left_out} bytes left out …]\n".join(ends)


def shortened(text: str, most_bytes: int) -> str:
    """Return ``text`` within ``most_bytes`` of UTF-8: both ends, and a line where the middle was."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return text
    half = (most_bytes - _NOTE_BYTES) // 2
    ends = (part.decode("utf-8", "ignore") for part in (data[:half], data[-half:]))
    return f"\n[… {len(data) - 2 * half} bytes left out …]\n".join(ends)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its exit code, 128 and the signal that ended it; None: its time was up."""

    exit_code: int | None
    out: Output = field(repr=False)
    err: Output = field(repr=False)


async def run(
    sandbox: Bubblewrap,
    command: Sequence[str],
    rules: Rules,
    *,
    timeout_s: float,
    most_bytes: int = MAX_OUTPUT_BYTES,
) -> Outcome:
    """Run a command, and return when it and everything that it started has ended.

    Cancelled, it ends all of that first. Of each output ``most_bytes`` are kept. It reads nothing.

    Raises:
        NoSandbox: it cannot be confined or started; nothing was run.
    """
    wrapped = sandbox.wrap(command, rules)
    try:
        process = await spawn_async(
            wrapped.argv, stdin=NOTHING, stderr=PIPE, env=wrapped.env, cwd=wrapped.cwd
        )
    except OSError as error:
        raise NoSandbox(f"the command was not started: {error.strerror}", hint="see the log") from error
    out, err = Output(most_bytes), Output(most_bytes)
    ended = False
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await _read(process, out, err)
                ended = True
    finally:
        if not ended:
            # Whoever cancels again waits for the end all the same: nothing of it may outlive the turn.
            await asyncio.shield(_end(process, out, err))
    return Outcome(process.returncode if ended else None, out, err)


async def _read(process: asyncio.subprocess.Process, out: Output, err: Output) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_drain(process.stdout, out), name="sandbox-out")
        group.create_task(_drain(process.stderr, err), name="sandbox-err")
    await process.wait()


async def _drain(stream: asyncio.StreamReader | None, output: Output) -> None:
    while stream is not None and (data := await stream.read(_CHUNK)):
        output.add(data)


async def _end(process: asyncio.subprocess.Process, out: Output, err: Output) -> None:
    """Have the launcher end everything; one that does not is killed, and what it watches over with it."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GRACE_S):
            await _read(process, out, err)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


TRIAL_S = 20.0
_TRIAL = ("/bin/echo", "works")
CURE = "apt-get install bubblewrap"
FORBIDDEN_CURE = "allow user namespaces; docs/tools.md explains how for services and containers"
AS_ROOT = "the gateway runs as root, and commands never run as root"
AS_ROOT_CURE = "run the gateway as an ordinary user; in a container with --user 10001:10001"
_TOLD_CHARS = 200


async def sandbox_here() -> Bubblewrap:
    """Find bubblewrap, and run a command in it: what is installed may still be forbidden here.

    Raises:
        NoSandbox: no command can be confined; the error says why, the hint what to do.
    """
    if sys.platform != "linux":
        raise NoSandbox("the sandbox needs Linux", hint="disable the tool")
    if os.geteuid() == 0:
        raise NoSandbox(AS_ROOT, hint=AS_ROOT_CURE)
    program = shutil.which("bwrap")
    if program is None:
        raise NoSandbox("bubblewrap is not installed", hint=CURE)
    # Compiled in a thread and cached, so that no command blocks the loop for it.
    for network in (False, True):
        await asyncio.to_thread(seccomp_filter, network=network)
    sandbox = Bubblewrap(program)
    with tempfile.TemporaryDirectory(prefix="chat-gateway-trial-") as name:
        outcome = await run(sandbox, _TRIAL, Rules(Path(name)), timeout_s=TRIAL_S)
    if outcome.exit_code != 0 or outcome.out.text().strip() != "works":
        said = outcome.err.text().strip() or f"it exited with {outcome.exit_code}"
        raise NoSandbox(f"bubblewrap does not work here: {said[:_TOLD_CHARS]}", hint=FORBIDDEN_CURE)
    return sandbox


class SandboxOfDaemon:
    """Looks for the sandbox once, when somebody first needs it; a failure is looked into again."""

    def __init__(self) -> None:
        self._found: Bubblewrap | None = None
        self._looking = asyncio.Lock()

    async def get(self) -> Bubblewrap:
        """Return the sandbox that works.

        Raises:
            NoSandbox: none does.
        """
        async with self._looking:
            if self._found is None:
                self._found = await sandbox_here()
            return self._found
