"""A gateway's process as the kit starts it: forked with its imports done, with faults and a point to die at.

``python -m tests.chaos.victim <descriptor>`` prepares itself and forks for each request. The words of a
request are ``<file of switches> <point, or -> <words of chat-gateway>``.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos import faults, points
from tests.support.forks import serve

# What a daemon imports by and by.
_MODULES = (
    "gateway.__main__",
    "gateway.cli.run",
    "gateway.cli.sessions",
    "gateway.app.sessions",
    "gateway.workers.count",
    "gateway.app.daemon",
    "gateway.http.server",
    "gateway.outbound.adapters",
    "gateway.queue.rabbitmq.mailbox",
    "channels.telegram.adapter",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.lifespan.off",
    "pydantic.v1",
    "uvloop",
)
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Prepare, then serve until the kit has ended."""
    asks = socket.socket(fileno=int(sys.argv[1]))
    for name in _MODULES:
        try:
            importlib.import_module(name)
        # A platform may lack one.
        except ImportError:
            continue
    from session.models import library

    library.load()
    gc.collect()
    gc.freeze()
    child = serve(asks)
    return 0 if child is None else _become(*child)


def _become(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Be the gateway, until the kit's process ends, or this one's point is reached."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(env)
    random.seed()
    switches, point, *rest = words
    faults.install(Path(switches))
    if point != "-":
        name, side, number = points.read(point)
        points.install(points.POINTS[name], points.Countdown(side, number))
    sys.argv = ["chat-gateway", *rest]
    code: int = importlib.import_module("gateway.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
