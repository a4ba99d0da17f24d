"""The verbs of ``backup`` and ``downgrade``, and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol


class Verbs(Protocol):
    """One level of verbs of the command line."""

    def verb(
        self, name: str, code: str, text: str, *, more: str = "", keyed: bool = False, as_json: bool = False
    ) -> argparse.ArgumentParser:
        """Add a verb, done by ``code``."""
        ...


def add_backup(tree: Verbs) -> None:
    """Add the verbs."""
    create = tree.verb(
        "create",
        "gateway.cli.backup:create",
        "write all that is kept into one file, beside running daemons",
        more="Prints its path. Everything that was accepted or answered when it began is in it.",
    )
    create.add_argument(
        "path", metavar="PATH", type=Path, help="a new file, or a folder in which it is named by the time"
    )
    create.add_argument(
        "--with-config",
        action="store_true",
        help="also the configuration file and the files of secrets that it names",
    )
    verify = tree.verb(
        "verify",
        "gateway.cli.backup:verify",
        "bring a backup back into a scratch folder and look at all of it; exit 1 where something is wrong",
        as_json=True,
    )
    verify.add_argument("path", metavar="PATH", type=Path, help="as `backup create` printed it")
    verify.add_argument("--scratch", metavar="DIR", type=Path, help="where that folder is made, and removed")
    restore = tree.verb(
        "restore",
        "gateway.cli.backup:restore",
        "make the workspace of a backup; it is there whole, or not at all",
        more="The workspace has to be empty, and no daemon may run on it.",
    )
    restore.add_argument("path", metavar="PATH", type=Path, help="as `backup create` printed it")


def add_downgrade(tree: Verbs) -> None:
    """Add the verb that goes one form of the workspace back."""
    back = tree.verb(
        "downgrade",
        "gateway.cli.downgrade:downgrade",
        "bring the workspace into the form before, for the version before",
        more="Puts back what a start put aside, and tells what came since. No daemon may run.",
        as_json=True,
    )
    back.add_argument("--dry-run", action="store_true", help="only say what would be done")
