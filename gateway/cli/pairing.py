"""``pairing list|approve|revoke``: strangers and groups that ask for access."""

from __future__ import annotations

import argparse

from channels.pairing import AccessRequest, Pairing
from gateway.cli import output
from gateway.cli.config import settings_of

COLUMNS = ("code", "who", "name", "channel", "state", "at")


def list_(args: argparse.Namespace) -> int:
    """Print who waits with which code, and who was let in, oldest first."""
    rows = _pairing(args).rows()
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words("no requests, and nobody was approved by a code")
    return 0


def approve(args: argparse.Namespace) -> int:
    """Let in who was told a code, for ever."""
    entry = _pairing(args).approve(args.code)
    output.words(f"{_shown(entry)} is approved; the next message will be answered")
    return 0


def revoke(args: argparse.Namespace) -> int:
    """Take back access and codes."""
    for entry in _pairing(args).revoke(args.who):
        output.words(f"{_shown(entry)} no longer has access")
    return 0


def _pairing(args: argparse.Namespace) -> Pairing:
    return Pairing(settings_of(args, named=True).state)


def _shown(entry: AccessRequest) -> str:
    name = "".join(c for c in entry.name if c.isprintable())
    return f"{entry.who} ({name})" if name else entry.who
