"""What tests use of ``subprocess``, for programs of ours: forked by a server that has done their imports.

Such a command is ``[sys.executable, "-m", module, ...]``. Any other one, one with ``anew``, and every one
where this process does not fork is left to ``subprocess``: both kinds of process are asked in the same way.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tests.support import harness, prepared


class Forked:
    """A process that a server of this worker forked, used as ``subprocess.Popen`` is."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        terminal: bool = False,
    ) -> None:
        """``terminal``: its stdin is a terminal, and shall steer it: Ctrl-C there is its signal."""
        self.args = words
        self.returncode: int | None = None
        with ExitStack() as theirs:
            fds = []
            self._ours: list[IO[Any] | None] = []
            for number, wanted in enumerate((stdin, stdout, stderr)):
                fd, ours = _end(wanted, number, theirs, text=text)
                fds.append(fd)
                self._ours.append(ours)
            self._told, tell = os.pipe()
            theirs.callback(os.close, tell)
            asked = prepared.server(litellm=prepared.asks_a_model(words, env))
            asked.start(words, env=env, fds=[*fds, tell], cwd=str(cwd), terminal=terminal)
        self.stdin, self.stdout, self.stderr = self._ours
        self._heard = bytearray()
        while b"\n" not in self._heard:
            self._hear()
        first, _, self._heard = self._heard.partition(b"\n")
        self.pid = int(first)

    def _hear(self) -> None:
        said = os.read(self._told, 64)
        # Without a word the server itself was killed, and with it whoever could know.
        self._heard += said or b"%d\n" % -signal.SIGKILL

    def poll(self) -> int | None:
        """Return the exit code once it has ended, the signal's number below zero."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; raise ``subprocess.TimeoutExpired`` where that takes too long."""
        if self.returncode is None:
            while b"\n" not in self._heard:
                if not select.select([self._told], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
                self._hear()
            os.close(self._told)
            self.returncode = int(self._heard)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write ``input``, read what it writes until it has ended; return that of stdout and of stderr."""
        end = None if timeout is None else time.monotonic() + timeout
        read: dict[int, Any] = {}

        def read_all(number: int, stream: IO[Any]) -> None:
            with stream:
                read[number] = stream.read()

        readers = [
            threading.Thread(target=read_all, args=(number, stream), daemon=True)
            for number, stream in enumerate(self._ours[1:])
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)
        for reader in readers:
            reader.join(None if end is None else max(0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        self.wait(None if end is None else max(0, end - time.monotonic()))
        return read.get(0), read.get(1)


def _end(
    wanted: int | IO[Any] | None, number: int, theirs: ExitStack, *, text: bool
) -> tuple[int, IO[Any] | None]:
    """Return the descriptor that the process is given, and of a pipe the end that is ours."""
    if wanted is None:
        return number, None
    if not isinstance(wanted, int):
        return wanted.fileno(), None
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null, None
    if wanted != subprocess.PIPE:
        return wanted, None
    reading, writing = os.pipe()
    given, kept, mode = (reading, writing, "w") if number == 0 else (writing, reading, "r")
    theirs.callback(os.close, given)
    return given, os.fdopen(kept, mode if text else f"{mode}b")


Process = Forked | subprocess.Popen[Any]
Awaited = prepared.Process | asyncio.subprocess.Process


def _forks(command: Sequence[str]) -> bool:
    return harness.FORKS and list(command[:2]) == [sys.executable, "-m"]


def start(command: Sequence[str], *, anew: bool = False, **options: Any) -> Process:
    """Start a command; the options are those of ``Forked``."""
    if _forks(command) and not anew:
        return Forked(command[2:], **{"env": os.environ, "cwd": harness.ROOT} | options)
    if options.pop("terminal", False):
        options |= {"start_new_session": True, "preexec_fn": prepared.take_terminal}
    return subprocess.Popen(command, **options)


def run(
    command: Sequence[str], *, input: Any = None, timeout: float, anew: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end; stdout and stderr are kept, stdin is ``input`` or what ``stdin`` names."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = start(command, anew=anew, **options)
    try:
        out, err = process.communicate(input, timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


async def spawn(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = harness.ROOT,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Awaited:
    """Start a command as ``asyncio.create_subprocess_exec`` does; without ``stdin`` it reads nothing."""
    stdin = stdin or subprocess.DEVNULL
    if _forks(command):
        return await prepared.spawn(
            command[2:], env=env or os.environ, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
        )
    return await asyncio.create_subprocess_exec(
        *command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
    )
