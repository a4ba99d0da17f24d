"""Processes of the gateway that begin where their imports have ended: forked from one that did them once.

A start of Python with all that a gateway imports takes half a second of a core, and LiteLLM three more; the
tests start hundreds. Each worker keeps a server, a process without threads, loops or settings, that forks for
each start: the child has its own environment, descriptors and arguments, runs the same ``main``, and dies by
the same signals. What is measured, or is about a start itself, is started anew from nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MAX_REQUEST_BYTES = 2**20
# What a daemon imports by and by, and the verbs that tests ask for most.
MODULES = (
    "gateway.__main__",
    "gateway.cli.run",
    "gateway.app.daemon",
    "gateway.http.server",
    "gateway.outbound.adapters",
    "gateway.queue.rabbitmq.mailbox",
    "gateway.cli.sessions",
    "gateway.cli.chat",
    "gateway.cli.status",
    "gateway.cli.memory",
    "channels.telegram.adapter",
    "channels.discord.adapter",
    "tests.support.killable",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.lifespan.off",
    # FastAPI looks whether a model is one of these.
    "pydantic.v1",
    "uvloop",
)


class Prepared:
    """The server of one worker; ``litellm`` says whether it has that imported, too."""

    def __init__(self, *, litellm: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.prepared",
                    str(theirs.fileno()),
                    "litellm" if litellm else "",
                ],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
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


_servers: dict[bool, Prepared] = {}


def server(*, litellm: bool) -> Prepared:
    """Return the server of this worker, started where none runs yet."""
    if litellm not in _servers:
        _servers[litellm] = Prepared(litellm=litellm)
    return _servers[litellm]


def end_servers() -> None:
    """End the servers of this worker."""
    while _servers:
        _servers.popitem()[1].close()


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


async def spawn(words: Sequence[str], *, env: Mapping[str, str], stdout: bool = False) -> Process:
    """Start ``python -m <words>`` without its imports; stderr is a pipe, and so is stdout where wanted."""
    asked = server(litellm=env.get("CHAT_GATEWAY_MODEL__NAME", "echo") != "echo")
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


# -- the server ------------------------------------------------------------------------------------


def serve(asks: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Fork for each request; return in a child what it is to be, and None when nobody asks any more.

    A request is ``{"words": [...], "env": {...}}``, perhaps with the folder ``cwd`` in which the child works.
    """
    import selectors

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


def become(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Be ``python -m <words>``."""
    os.environ.clear()
    os.environ.update(env)
    random.seed()
    module, *arguments = words
    sys.argv = [module, *arguments]
    if module == "tests.support.killable":
        from tests.support.killable import main

        return main()
    from gateway.__main__ import main as gateway_main

    return gateway_main()


def prepare(*, litellm: bool) -> None:
    """Import what every start would import."""
    import gc
    import importlib

    for name in MODULES:
        importlib.import_module(name)
    if litellm:
        from session.models import library

        library.load()
    gc.collect()
    gc.freeze()


def main() -> int:
    """Prepare, then serve until the tests have ended."""
    asks = socket.socket(fileno=int(sys.argv[1]))
    prepare(litellm=sys.argv[2] == "litellm")
    child = serve(asks)
    return 0 if child is None else become(*child)


if __name__ == "__main__":
    sys.exit(main())
