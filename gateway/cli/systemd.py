"""``systemd``: the units of the service, with the path of this installation."""

from __future__ import annotations

import argparse

from gateway.cli import output
from gateway.errors import GatewayError
from gateway.systemd import units


def show(args: argparse.Namespace) -> int:
    """Print one of the files."""
    output.data(units.text(args.name, args.program or units.program()).rstrip("\n"))
    return 0


def install(args: argparse.Namespace) -> int:
    """Write the files, and say what makes them count."""
    try:
        written = units.install(args.to, args.program or units.program())
    except OSError as error:
        raise GatewayError(
            f"{error.filename}: {error.strerror}", hint="run it as root, or name a folder by --to"
        ) from error
    for path in written:
        output.shown(str(path))
    output.words("then: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    output.words("      systemctl enable --now chat-gateway")
    return 0
