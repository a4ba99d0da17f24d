"""``systemd``: the units of the service, with the path of this installation."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gateway import systemd as units
from gateway.cli import output
from gateway.cli.root import FILE, FOLDER, GlobalOptions, group
from gateway.config.finding import file_to_change
from gateway.errors import GatewayError

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
