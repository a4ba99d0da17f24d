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
        output.words("there is no token besides http.token of the configuration")
    return 0


def add(args: argparse.Namespace) -> int:
    """Make a token and print it, this once."""
    settings = settings_of(args)
    token = Tokens(settings.state).add(args.name, args.right)
    output.data(token)
    output.words(f"keep it now: it is shown this once; it may {_MAY[args.right]}")
    if not settings.http.token.get_secret_value():
        output.words("http.token is not set here: where the daemon has none either, everybody on its machine")
        output.words("is let in without a token; set it (openssl rand -hex 32), and tokens are asked for")
    return 0


def revoke(args: argparse.Namespace) -> int:
    """Let a token open nothing any more, in running daemons, too."""
    Tokens(settings_of(args).state).revoke(args.name)
    output.words(f"{args.name} opens nothing any more")
    return 0


_MAY = {
    "read": "look at everything that is said and kept",
    "write": "look, talk, and change chats, memory and jobs",
    "admin": "do everything, as http.token may",
}
