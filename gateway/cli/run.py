"""``run``: the daemon in the foreground."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Literal

import click

from gateway.cli import output
from gateway.cli.config import name_place
from gateway.cli.root import GlobalOptions, Verb
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.app.app import Application
    from gateway.http.server import HttpServer


@click.command(cls=Verb)
@click.option(
    "--role",
    type=click.Choice(("all", "channels", "session")),
    default="all",
    help="channels: platforms and scheduled jobs; session: answers, memory and HTTP; both need RabbitMQ",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="worker processes, with RabbitMQ; 0: one per core (default: limits.workers)",
)
@click.option(
    "--stop-on-eof",
    is_flag=True,
    help="stop when stdin closes, so that it does not outlive the program that started it",
)
@click.option(
    "--reset-state",
    is_flag=True,
    help="first move state/ aside: queue, pairing, cursors and approvals start empty; "
    "transcripts, memory and jobs stay",
)
def run(
    opts: GlobalOptions,
    role: Literal["all", "channels", "session"],
    workers: int | None,
    stop_on_eof: bool,
    reset_state: bool,
) -> int:
    """Run the gateway in the foreground.

    Prints `ready` to stderr when it is. SIGTERM stops it once the answers in progress are done.
    """
    from gateway.app import daemon
    from gateway.config.load import load_values
    from gateway.workers.workers import count, remarks

    settings, values = load_values(opts.config, opts.workspace)
    name_place(opts, settings)
    if reset_state:
        _reset_state(settings.workspace)
    number = count(settings, role, workers)
    if stop_on_eof:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    team = daemon.Team(number, values, remarks(settings, role, workers))
    return daemon.run(settings, server=_server, role=role, team=team)


def _reset_state(workspace: Path) -> None:
    from gateway.app import state_folder
    from gateway.app.daemons import others

    try:
        former = state_folder.reset(workspace, beside=lambda: others(workspace))
    except OSError as error:
        raise GatewayError(
            f"{workspace / 'state'} cannot be moved: {error}", hint="check the disk"
        ) from error
    output.words(f"the former state is in {former}" if former is not None else "there was no state to reset")


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
