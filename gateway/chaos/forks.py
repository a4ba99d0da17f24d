"""Processes that begin where imports have ended: forked from one that did them once.

The server is a process without threads, loops or settings. It forks for each request that comes over its
socket; the child has its own environment, descriptors and arguments, and dies by the same signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_REQUEST_BYTES = 2**20


class ForkServer:
    """``python -m <module> <descriptor of its socket> <words>``, which is to call ``serve``."""

    def __init__(self, module: str, *words: str, folder: Path | None = None, apart: bool = False) -> None:
        """Start it; ``apart`` keeps the signals of this terminal from it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *words],
                cwd=folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=apart,
            )
        self._socket = ours
        self._socket.setblocking(False)

    def start(self, words: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]) -> None:
        """Ask for a process; ``fds`` are its stdin, stdout and stderr, and where it is told about."""
        request = json.dumps({"words": list(words), "env": dict(env)}).encode()
        # A server that still imports has room for requests: they wait in its socket.
        socket.send_fds(self._socket, [request], list(fds))

    def fileno(self) -> int:
        """Return the descriptor of its socket: a process that inherits it may ask as ``start`` does."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the server; its processes go on."""
        self._socket.close()
        self._process.wait(30)


class Process:
    """A process that a server forked, with what tests use of ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int, told: asyncio.StreamReader) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._told = told
        self._ended = asyncio.create_task(self._end(), name=f"end of {pid}")

    async def _end(self) -> int:
        line = await self._told.readline()
        # Without a word the server itself was killed, and with it whoever could know.
        self.returncode = int(line) if line else -signal.SIGKILL
        return self.returncode

    async def wait(self) -> int:
        """Return the exit code, or the signal's number below zero."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal where it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Return what it wrote, once it has ended."""
        out, err, _ = await asyncio.gather(_all_of(self.stdout), _all_of(self.stderr), self.wait())
        return out, err


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""


async def spawn(
    asked: ForkServer, words: Sequence[str], *, env: Mapping[str, str], stdout: bool = False
) -> Process:
    """Have a process forked that is to be ``words``; stderr is a pipe, and so is stdout where wanted."""
    null = os.open(os.devnull, os.O_RDWR)
    pipes = [os.pipe(), os.pipe(), os.pipe()]
    (out, out_in), (err, err_in), (told, told_in) = pipes
    try:
        asked.start(words, env=env, fds=[null, out_in if stdout else null, err_in, told_in])
    finally:
        for fd in (null, out_in, err_in, told_in):
            os.close(fd)
    reader = await _reader(told)
    process = Process(int(await reader.readline()), reader)
    process.stderr = await _reader(err)
    if stdout:
        process.stdout = await _reader(out)
    else:
        os.close(out)
    return process


async def _reader(fd: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    return reader


def serve(asks: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Fork for each request; return in a child what it is to be, and None when nobody asks any more.

    A request is ``{"words": [...], "env": {...}}``, perhaps with the folder ``cwd`` in which the child works.
    """
    # By the descriptor of a child: its pid, and who is told of its end.
    told: dict[int, tuple[int, int]] = {}
    selector = selectors.DefaultSelector()
    selector.register(asks, selectors.EVENT_READ)
    while True:
        for ready, _ in selector.select():
            if ready.fileobj is not asks:
                assert isinstance(ready.fileobj, int)
                selector.unregister(ready.fileobj)
                pid, tell = told.pop(ready.fileobj)
                os.close(ready.fileobj)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(tell, b"%d\n" % code)
                os.close(tell)
                continue
            data, fds, _, _ = socket.recv_fds(asks, MAX_REQUEST_BYTES, 4)
            if not data:
                return None
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                selector.close()
                asks.close()
                for child, (_, tell) in told.items():
                    os.close(child)
                    os.close(tell)
                for number in range(3):
                    os.dup2(fds[number], number)
                for fd in fds:
                    os.close(fd)
                os.chdir(request.get("cwd", "."))
                return request["words"], request["env"]
            for fd in fds[:3]:
                os.close(fd)
            os.write(fds[3], b"%d\n" % pid)
            child = os.pidfd_open(pid)
            told[child] = pid, fds[3]
            selector.register(child, selectors.EVENT_READ)
