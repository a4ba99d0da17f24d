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
        "write the whole workspace to one file, even while the gateway runs",
        more="Prints the path. Contains every message accepted and every answer given before it started.",
    )
    create.add_argument(
        "path", metavar="PATH", type=Path, help="a new file, or a folder to create chat-gateway-<time>.tar in"
    )
    create.add_argument(
        "--with-config",
        action="store_true",
        help="include the configuration file and the secret files that it names",
    )
    verify = tree.verb(
        "verify",
        "gateway.cli.backup:verify",
        "restore a backup to a temporary folder and check it; exit 1 if it is damaged",
        as_json=True,
    )
    verify.add_argument("path", metavar="PATH", type=Path, help="the backup file")
    verify.add_argument("--scratch", metavar="DIR", type=Path, help="create the temporary folder in DIR")
    restore = tree.verb(
        "restore",
        "gateway.cli.backup:restore",
        "restore a backup, completely or not at all",
        more="The workspace must be empty and the gateway stopped.",
    )
    restore.add_argument("path", metavar="PATH", type=Path, help="the backup file")


def add_downgrade(tree: Verbs) -> None:
    """Add the verb that goes one form of the workspace back."""
    back = tree.verb(
        "downgrade",
        "gateway.cli.downgrade:downgrade",
        "convert the workspace for the previous version",
        more="Restores the files saved by the upgrade, and lists what is newer. Stop the gateway first.",
        as_json=True,
    )
    back.add_argument("--dry-run", action="store_true", help="only show what would be done")
