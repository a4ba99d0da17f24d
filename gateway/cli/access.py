"""``tokens`` and ``pairing``: who may use the API, and which people and groups may write to the bots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions, as_json, complete_codes, complete_people, group

if TYPE_CHECKING:
    from channels.pairing import AccessRequest, Pairing
    from gateway.config.settings import Settings
    from gateway.service.tokens import Tokens


tokens = group("tokens")
_TOKENS = ("name", "right", "created_at")


@tokens.command("list")
@as_json
def list_tokens(opts: GlobalOptions, as_json: bool) -> None:
    """List API tokens and their rights."""
    rows = _tokens(settings_of(opts)).rows()
    output.listed(rows, _TOKENS, "no API tokens besides http.token of the configuration", as_json=as_json)


@tokens.command()
@click.argument("name", metavar="NAME", help="a-z, 0-9, - and _")
@click.option(
    "--right",
    type=click.Choice(("read", "write", "admin")),
    default="write",
    show_default=True,
    help="read: view; write: also chat, and change chats, memory and jobs; admin: everything",
)
def add(opts: GlobalOptions, name: str, right: Literal["read", "write", "admin"]) -> None:
    """Create an API token and print it; it is shown only once.

    Tokens take effect if http.token is set; http.token itself has all rights.
    """
    settings = settings_of(opts)
    token = _tokens(settings).add(name, right)
    output.data(token)
    output.words(f"copy it now, it is shown only once; it can {_MAY[right]}")
    if not settings.http.token.get_secret_value():
        output.words(
            "http.token is not set here. If the gateway has none either, anyone on its machine has access"
        )
        output.words("without a token; to require tokens, set it (openssl rand -hex 32)")


@tokens.command()
@click.argument("name", metavar="NAME", help="its name, from `tokens list`")
def revoke(opts: GlobalOptions, name: str) -> None:
    """Revoke an API token at once."""
    _tokens(settings_of(opts)).revoke(name)
    output.words(f"{name} is revoked")


def _tokens(settings: Settings) -> Tokens:
    from gateway.service.tokens import Tokens

    return Tokens(settings.state)


_MAY = {
    "read": "view all chats and data",
    "write": "view, chat, and change chats, memory and jobs",
    "admin": "do everything, like http.token",
}


pairing = group("pairing")
_REQUESTS = ("code", "who", "name", "channel", "state", "at")


@pairing.command("list")
@as_json
def list_pairing(opts: GlobalOptions, as_json: bool) -> None:
    """List requests and approvals."""
    rows = _pairing(opts).rows()
    output.listed(rows, _REQUESTS, "no requests, and nobody was approved with a code", as_json=as_json)


@pairing.command()
@click.argument(
    "code",
    metavar="CODE",
    help="the code that the bot sent; valid for an hour",
    shell_complete=complete_codes,
)
def approve(opts: GlobalOptions, code: str) -> None:
    """Approve the person or group that got this code."""
    entry = _pairing(opts).approve(code)
    output.words(f"{_shown(entry)} is approved; the next message will be answered")


# The id of a group is negative.
@pairing.command("revoke", context_settings={"ignore_unknown_options": True})
@click.argument(
    "who", metavar="WHO", help="telegram:<id>, or <id> for all channels", shell_complete=complete_people
)
def revoke_access(opts: GlobalOptions, who: str) -> None:
    """Revoke the access of a person or group."""
    for entry in _pairing(opts).revoke(who):
        output.words(f"{_shown(entry)} no longer has access")


def _pairing(opts: GlobalOptions) -> Pairing:
    from channels.pairing import Pairing

    return Pairing(settings_of(opts, named=True).state)


def _shown(entry: AccessRequest) -> str:
    name = "".join(c for c in entry.name if c.isprintable())
    return f"{entry.who} ({name})" if name else entry.who
