"""``completion``: prints what makes a shell complete this program's command lines."""

from __future__ import annotations

import argparse

from gateway.cli import output
from gateway.cli.parser import PROGRAM


def completion(args: argparse.Namespace) -> int:
    """Print the script for one shell; it asks this program for the words."""
    from argcomplete.shell_integration import shellcode

    output.data(shellcode([PROGRAM], shell=args.shell).strip("\n"))
    return 0
