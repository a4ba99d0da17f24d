"""``pairing list|approve|revoke``: strangers and groups that ask for access."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.cli import known, output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions, as_json, group

if TYPE_CHECKING:
    from channels.pairing import AccessRequest, Pairing

pairing = group("pairing")
COLUMNS = ("code", "who", "name", "channel", "state", "at")


@pairing.command("list")
@as_json
def list_(opts: GlobalOptions, as_json: bool) -> None:
    """List requests and approvals."""
    rows = _pairing(opts).rows()
    output.listed(rows, COLUMNS, "no requests, and nobody was approved with a code", as_json=as_json)


@pairing.command()
@click.argument(
    "code",
    metavar="CODE",
    help="the code that the bot sent; valid for an hour",
    shell_complete=known.complete_codes,
)
def approve(opts: GlobalOptions, code: str) -> None:
    """Approve the person or group that got this code."""
    entry = _pairing(opts).approve(code)
    output.words(f"{_shown(entry)} is approved; the next message will be answered")


# The id of a group is negative.
@pairing.command(context_settings={"ignore_unknown_options": True})
@click.argument(
    "who", metavar="WHO", help="telegram:<id>, or <id> for all channels", shell_complete=known.complete_people
)
def revoke(opts: GlobalOptions, who: str) -> None:
    """Revoke the access of a person or group."""
    for entry in _pairing(opts).revoke(who):
        output.words(f"{_shown(entry)} no longer has access")


def _pairing(opts: GlobalOptions) -> Pairing:
    from channels.pairing import Pairing

    return Pairing(settings_of(opts, named=True).state)


def _shown(entry: AccessRequest) -> str:
    name = "".join(c for c in entry.name if c.isprintable())
    return f"{entry.who} ({name})" if name else entry.who
