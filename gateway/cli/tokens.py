"""``tokens list|add|revoke``: who may use the API, under which name and with which right."""

from __future__ import annotations

import argparse

from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.service.tokens import Tokens

COLUMNS = ("name", "right", "created_at")


def list_(args: argparse.Namespace) -> int:
    """Print the tokens by name; ``http.token`` of the configuration is not among them."""
    rows = Tokens(settings_of(args).state).rows()
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words("no API tokens besides http.token of the configuration")
    return 0


def add(args: argparse.Namespace) -> int:
    """Make a token and print it, this once."""
    settings = settings_of(args)
    token = Tokens(settings.state).add(args.name, args.right)
    output.data(token)
    output.words(f"copy it now, it is shown only once; it can {_MAY[args.right]}")
    if not settings.http.token.get_secret_value():
        output.words(
            "http.token is not set here. If the gateway has none either, anyone on its machine has access"
        )
        output.words("without a token; to require tokens, set it (openssl rand -hex 32)")
    return 0


def revoke(args: argparse.Namespace) -> int:
    """Let a token open nothing any more, in running daemons, too."""
    Tokens(settings_of(args).state).revoke(args.name)
    output.words(f"{args.name} is revoked")
    return 0


_MAY = {
    "read": "view all chats and data",
    "write": "view, chat, and change chats, memory and jobs",
    "admin": "do everything, like http.token",
}
