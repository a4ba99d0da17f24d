"""The verbs of ``systemd`` and their options."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.cli.memory_verbs import Verbs

# What `gateway.systemd.units` has: help is quick because it is not imported.
NAMES = (
    *("chat-gateway.service", "chat-gateway@.service", "sysusers.conf", "tmpfiles.conf", "sandbox.conf"),
    "chat-gateway-user.service",
)


def add_systemd(tree: Verbs) -> None:
    """Add the verbs."""
    show = tree.verb(
        "show",
        "gateway.cli.systemd:show",
        "print a unit, or another file of the service",
        more="sandbox.conf is a drop-in that lets the tool `shell` use bubblewrap, "
        "chat-gateway-user.service the unit of one person.",
    )
    show.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    install = tree.verb(
        "install",
        "gateway.cli.systemd:install",
        "write the units, the user and the folders of the service",
        more="They start this program where it lies now. With --user it is one unit, of your own systemd, "
        "which needs no root.",
    )
    install.add_argument(
        "--user", action="store_true", help="the unit of one person, with your configuration"
    )
    install.add_argument(
        "--to", metavar="DIR", type=Path, help="where to (default: /etc; with --user ~/.config/systemd/user)"
    )
    for verb in (show, install):
        _add_program(verb)


def _add_program(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--program", metavar="FILE", type=Path, help="the program that the service starts")
