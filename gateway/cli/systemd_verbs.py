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
        "print a unit or another file of the service",
        more="sandbox.conf is a drop-in that lets the tool `shell` use bubblewrap; "
        "chat-gateway-user.service runs the gateway as your own user.",
    )
    show.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    install = tree.verb(
        "install",
        "gateway.cli.systemd:install",
        "install the units and the files that create the service's user and folders",
        more="The units start this program at its current path. With --user it installs one for your own "
        "systemd, without root.",
    )
    install.add_argument("--user", action="store_true", help="install a unit for your own user")
    install.add_argument(
        "--to", metavar="DIR", type=Path, help="folder (default: /etc; with --user ~/.config/systemd/user)"
    )
    for verb in (show, install):
        _add_program(verb)


def _add_program(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--program", metavar="FILE", type=Path, help="the program to start (default: this one)")
