"""``run``: the gateway in the foreground; ``systemd``: the units of the service."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gateway import systemd as units
from gateway.cli import output
from gateway.cli.config import name_place
from gateway.cli.root import FILE, FOLDER, GlobalOptions, Verb, group
from gateway.config.finding import file_to_change
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.app.application import Application
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


systemd = group("systemd")
_program_option = click.option(
    "--program", metavar="FILE", type=FILE, help="the program to start (default: this one)"
)


@systemd.command()
@click.argument("name", metavar="NAME", type=click.Choice(units.NAMES), help=", ".join(units.NAMES))
@_program_option
def show(_: GlobalOptions, name: str, program: Path | None) -> None:
    """Print a unit or another file of the service.

    sandbox.conf is a drop-in that lets the tool `shell` use bubblewrap; chat-gateway-user.service runs the
    gateway as your own user.
    """
    output.data(units.text(name, _program(program)).rstrip("\n"))


@systemd.command()
@click.option("--user", is_flag=True, help="install a unit for your own user")
@click.option(
    "--to", metavar="DIR", type=FOLDER, help="folder (default: /etc; with --user ~/.config/systemd/user)"
)
@_program_option
def install(opts: GlobalOptions, user: bool, to: Path | None, program: Path | None) -> None:
    """Install the units and the files that create the service's user and folders.

    The units start this program at its current path. With --user it installs one for your own systemd,
    without root.
    """
    if user:
        _install_user(opts, to, program)
        return
    try:
        written = units.install(to or Path("/etc"), _program(program))
    except OSError as error:
        raise GatewayError(
            f"{error.filename}: {error.strerror}", hint="run it as root, or choose a folder with --to"
        ) from error
    for path in written:
        output.shown(str(path))
    output.words("then: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    output.words("      systemctl enable --now chat-gateway")


def _install_user(opts: GlobalOptions, to: Path | None, program: Path | None) -> None:
    from gateway.config.load import load

    config = file_to_change(opts.config)
    if not config.exists():
        raise GatewayError(f"{config} does not exist", hint="chat-gateway onboard creates it")
    workspace = load(config, opts.workspace).workspace
    unit = units.user_text(_program(program), config, workspace)
    output.shown(str(units.install_user(to or units.USER_FOLDER, unit, workspace)))
    output.words("then: systemctl --user daemon-reload && systemctl --user enable --now chat-gateway")


def _program(named: Path | None) -> Path:
    # systemd looks from the root on; a link stays one, so that it may be led elsewhere.
    return Path(os.path.abspath(named or units.program()))  # noqa: PTH100
