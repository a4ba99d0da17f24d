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

    def start(
        self, words: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int], **more: str | bool
    ) -> None:
        """Ask for a process; ``fds`` are its stdin, stdout and stderr, and where it is told about.

        ``more``: what ``serve`` says that a request may have.
        """
        request = json.dumps({"words": list(words), "env": dict(env), **more}).encode()
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
    """A process that a server forked, with what is used here of ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int, told: asyncio.StreamReader) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
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
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Close its stdin; return what it wrote, once it has ended."""
        if self.stdin is not None:
            self.stdin.close()
        out, err, _ = await asyncio.gather(_all_of(self.stdout), _all_of(self.stderr), self.wait())
        return out, err


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""


async def spawn(
    asked: ForkServer,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.PIPE,
) -> Process:
    """Have a process forked that is to be ``words``; each stream is a pipe, nothing, or (None) ours.

    It works in ``cwd``, else where the server does.
    """
    with contextlib.ExitStack() as theirs:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        fds, ours = [], []
        for number, wanted in enumerate((stdin, stdout, stderr, subprocess.PIPE)):
            if wanted == subprocess.PIPE:
                ends = os.pipe()
                kept, given = reversed(ends) if number == 0 else ends
                theirs.callback(os.close, given)
            else:
                kept, given = None, null if wanted is not None else number
            fds.append(given)
            ours.append(kept)
        asked.start(words, env=env, fds=fds, **({} if cwd is None else {"cwd": str(cwd)}))
    into, out, err, told = ours
    assert told is not None
    reader = await _reader(told)
    process = Process(int(await reader.readline()), reader)
    process.stdin = await _writer(into) if into is not None else None
    process.stdout = await _reader(out) if out is not None else None
    process.stderr = await _reader(err) if err is not None else None
    return process


async def _reader(fd: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    return reader


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    # A reader is only the protocol that a writer asks whether it may go on.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


def serve(asks: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Fork for each request; return in a child what it is to be, and None when nobody asks any more.

    A request is ``{"words": [...], "env": {...}}``, perhaps with the folder ``cwd`` in which the child works,
    and with ``"terminal": true`` where its stdin is a terminal that shall steer it.
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
                if request.get("terminal"):
                    os.setsid()
                    take_terminal()
                return request["words"], request["env"]
            for fd in fds[:3]:
                os.close(fd)
            os.write(fds[3], b"%d\n" % pid)
            child = os.pidfd_open(pid)
            told[child] = pid, fds[3]
            selector.register(child, selectors.EVENT_READ)


def take_terminal() -> None:
    """Make stdin the controlling terminal, so that Ctrl-C arrives as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
