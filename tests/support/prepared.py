"""Processes of the gateway that begin where their imports have ended: forked from one that did them once.

A start of Python with all that a gateway imports takes half a second of a core, and LiteLLM three more; the
tests start hundreds. Each worker keeps a server, a process without threads, loops or settings, that forks for
each start: the child has its own environment, descriptors and arguments, runs the same ``main``, and dies by
the same signals. What is measured, or is about a start itself, is started anew from nothing.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.chaos.forks import ForkServer, Process, serve
from gateway.chaos.forks import spawn as forked

__all__ = ["Prepared", "Process", "end_servers", "serve", "server", "spawn"]

ROOT = Path(__file__).resolve().parent.parent.parent
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
    """End the servers of this worker."""
    while _servers:
        _servers.popitem()[1].close()


async def spawn(words: Sequence[str], *, env: Mapping[str, str], stdout: bool = False) -> Process:
    """Start ``python -m <words>`` without its imports; stderr is a pipe, and so is stdout where wanted."""
    asked = server(litellm=env.get("CHAT_GATEWAY_MODEL__NAME", "echo") != "echo")
    return await forked(asked, words, env=env, stdout=stdout)


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
        from session.models import llm

        llm.load()
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
