"""The verbs of ``systemd`` and their options."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.cli.memory_verbs import Verbs

# What `gateway.systemd.units` has: help is quick because it is not imported.
NAMES = ("chat-gateway.service", "chat-gateway@.service", "sysusers.conf", "tmpfiles.conf", "sandbox.conf")


def add_systemd(tree: Verbs) -> None:
    """Add the verbs."""
    show = tree.verb(
        "show",
        "gateway.cli.systemd:show",
        "print a unit, or another file of the service",
        more="sandbox.conf is a drop-in that lets the tool `shell` use bubblewrap.",
    )
    show.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    install = tree.verb(
        "install",
        "gateway.cli.systemd:install",
        "write the units, the user and the folders of the service",
        more="They start this program where it lies now.",
    )
    install.add_argument(
        "--to", metavar="DIR", type=Path, default=Path("/etc"), help="below which (default: %(default)s)"
    )
    for verb in (show, install):
        _add_program(verb)


def _add_program(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--program", metavar="FILE", type=Path, help="the program that the service starts")
