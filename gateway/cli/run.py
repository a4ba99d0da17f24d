"""``run``: the daemon in the foreground."""

from __future__ import annotations

import argparse

from gateway.config import load


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to end."""
    settings = load(args.config, args.workspace)
    from gateway import daemon

    return daemon.run(settings, role=args.role)
