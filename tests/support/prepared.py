"""Processes of the gateway that begin where their imports have ended: forked from one that did them once.

A start of Python with all that a gateway imports takes half a second of a core, and LiteLLM three more; the
tests start hundreds. Each worker keeps a server, a process without threads, loops or settings, that forks for
each start: the child has its own environment, descriptors and arguments, runs the same ``main``, and dies by
the same signals. What is measured, or is about a start itself, is started anew from nothing.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.forks import ForkServer, Process, serve, take_terminal
from tests.support.forks import spawn as forked
from tests.support.stacks import tell_on_signal

__all__ = ["Prepared", "Process", "end_servers", "serve", "server", "spawn", "take_terminal"]

ROOT = Path(__file__).resolve().parent.parent.parent
# What a daemon imports by and by, and the verbs that tests ask for most.
MODULES = (
    "gateway.__main__",
    "gateway.cli.run",
    "gateway.app.daemon",
    "gateway.http.server",
    "gateway.outbound.adapters",
    "gateway.queue.rabbitmq.broker",
    "gateway.cli.sessions",
    "gateway.cli.conversation",
    "gateway.cli.status",
    "gateway.cli.memory",
    "gateway.app.wiring_session",
    "gateway.workers.workers",
    "channels.telegram.adapter",
    "channels.discord.adapter",
    "tests.support.killable",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.lifespan.off",
    # FastAPI looks whether a model is one of these.
    "pydantic.v1",
    # httpx imports it with its first client.
    "httpcore",
    "uvloop",
)


class Prepared(ForkServer):
    """The server of one worker; ``litellm`` says whether it has that imported, too."""

    def __init__(self, *, litellm: bool) -> None:
        super().__init__("tests.support.prepared", "litellm" if litellm else "", folder=ROOT)


_servers: dict[bool, Prepared] = {}


def server(*, litellm: bool) -> Prepared:
    """Return the server of this worker, started where none runs yet."""
    if litellm not in _servers:
        _servers[litellm] = Prepared(litellm=litellm)
    return _servers[litellm]


def end_servers() -> None:
    while _servers:
        _servers.popitem()[1].close()


def asks_a_model(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Say whether a process is likely to need LiteLLM, unless its environment alone names its model."""
    named = env.get("CHAT_GATEWAY_MODEL__NAME", "echo") != "echo"
    return named or not {"onboard", "check", "--config"}.isdisjoint(words)


async def spawn(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path = ROOT,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.PIPE,
) -> Process:
    """Start ``python -m <words>`` without its imports; each stream is a pipe, nothing, or (None) ours."""
    asked = server(litellm=asks_a_model(words, env))
    return await forked(asked, words, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)


def open_streams() -> None:
    """Open stdin, stdout and stderr as Python does at a start: those of the server knew other descriptors."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        buffer: Any = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding=was.encoding,
            errors=was.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=unbuffered and number > 0,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(words: Sequence[str], env: Mapping[str, str]) -> int:
    os.environ.clear()
    os.environ.update(env)
    random.seed()
    open_streams()
    tell_on_signal()
    module, *arguments = words
    sys.argv = [module, *arguments]
    if module == "tests.support.killable":
        from tests.support.killable import main

        return main()
    if module == "gateway":
        from gateway.__main__ import main as gateway_main

        return gateway_main()
    import runpy

    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def prepare(*, litellm: bool) -> None:
    import importlib

    for name in MODULES:
        importlib.import_module(name)
    if litellm:
        from session.models import library

        library.load()
    gc.collect()
    gc.freeze()


def end(code: int) -> NoReturn:
    """End as Python does, but leave apart what the server imported: to take it apart takes 100 ms."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Prepare, then serve until the tests have ended."""
    asks = socket.socket(fileno=int(sys.argv[1]))
    prepare(litellm=sys.argv[2] == "litellm")
    child = serve(asks)
    if child is None:
        return 0
    try:
        code = become(*child)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        code = error.code or 0
    end(code)


if __name__ == "__main__":
    sys.exit(main())
