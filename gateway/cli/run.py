"""``run``: the daemon in the foreground."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.app import daemon
from gateway.app.app import Application
from gateway.cli.config import name_place
from gateway.config.load import load_values
from gateway.workers.count import count, remarks

if TYPE_CHECKING:
    from gateway.http.server import HttpServer


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to end."""
    settings, values = load_values(args.config, args.workspace)
    name_place(args, settings)
    number = count(settings, args.role, args.workers)
    if args.stop_on_eof:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    # A worker reads there as how many it starts.
    team = daemon.Team(number, _with_workers(values, number), remarks(settings, args.role, args.workers))
    return daemon.run(settings, server=_server, role=args.role, team=team)


def _with_workers(values: Mapping[str, object], number: int) -> Mapping[str, object]:
    limits = values.get("limits")
    return {**values, "limits": {**(limits if isinstance(limits, Mapping) else {}), "workers": number}}


def _end_with_stdin() -> None:
    """End this process in good order once nobody can write to its stdin any more, however they ended."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _server(application: Application) -> HttpServer | None:
    watched = application.role == "channels"
    if watched and not application.settings.metrics.port:
        return None
    # A process that serves no HTTP starts sooner without it.
    from gateway.http.server import HttpServer

    return HttpServer(application, watched=watched)
