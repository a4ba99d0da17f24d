"""``systemd``: the units of the service, with the path of this installation."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.cli import output
from gateway.config.finding import file_to_change
from gateway.config.load import load
from gateway.errors import GatewayError
from gateway.systemd import units


def show(args: argparse.Namespace) -> int:
    """Print one of the files."""
    output.data(units.text(args.name, _program(args)).rstrip("\n"))
    return 0


def install(args: argparse.Namespace) -> int:
    """Write the files, and say what makes them count."""
    if args.user:
        return _install_user(args)
    try:
        written = units.install(args.to or Path("/etc"), _program(args))
    except OSError as error:
        raise GatewayError(
            f"{error.filename}: {error.strerror}", hint="run it as root, or choose a folder with --to"
        ) from error
    for path in written:
        output.shown(str(path))
    output.words("then: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    output.words("      systemctl enable --now chat-gateway")
    return 0


def _install_user(args: argparse.Namespace) -> int:
    config = file_to_change(args.config)
    if not config.exists():
        raise GatewayError(f"{config} does not exist", hint="chat-gateway onboard creates it")
    workspace = load(config, args.workspace).workspace
    unit = units.user_text(_program(args), config, workspace)
    output.shown(str(units.install_user(args.to or units.USER_FOLDER, unit, workspace)))
    output.words("then: systemctl --user daemon-reload && systemctl --user enable --now chat-gateway")
    return 0


def _program(args: argparse.Namespace) -> Path:
    # systemd looks from the root on; a link stays one, so that it may be led elsewhere.
    return Path(os.path.abspath(args.program or units.program()))  # noqa: PTH100
