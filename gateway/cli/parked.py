"""``parked list|show|retry|drop``: the letters that were set aside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions, MessageId, as_json, group

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.http.client import Client
    from gateway.service.parked import ParkedLetters

parked = group("parked")
COLUMNS = ("id", "box", "key", "reason", "attempts", "parked_at")
T = TypeVar("T")


_id = click.argument("id", metavar="ID", type=MessageId(), help="its id, from `parked list`")
_key = click.option("--key", metavar="KEY", help="its chat, if several chats have a message with this id")


@parked.command("list")
@as_json
def list_(opts: GlobalOptions, as_json: bool) -> None:
    """List parked messages, oldest first."""
    rows = _asked(opts, lambda letters: letters.parked())
    output.listed(rows, COLUMNS, "no parked messages", as_json=as_json)


@parked.command()
@_id
@_key
@as_json
def show(opts: GlobalOptions, id: str, key: str | None, as_json: bool) -> None:
    """Show a parked message in full."""
    found = _asked(opts, lambda letters: letters.parked_one(id, key))
    if as_json:
        output.document(found)
        return
    for name, value in found.items():
        output.shown(f"{name}: {value}")


@parked.command()
@_id
@_key
def retry(opts: GlobalOptions, id: str, key: str | None) -> None:
    """Put a parked message back at the end of its queue."""
    found = _asked(opts, lambda letters: letters.retry(id, key))
    output.words(f"{found['id']} is back in the {found['box']} queue")


@parked.command()
@_id
@_key
def drop(opts: GlobalOptions, id: str, key: str | None) -> None:
    """Delete a parked message for good."""
    found = _asked(opts, lambda letters: letters.drop(id, key))
    output.words(f"{found['id']} is deleted")


def _asked(opts: GlobalOptions, call: Callable[[Client | ParkedLetters], Awaitable[T]]) -> T:
    async def work(settings: Settings) -> T:
        async with attach.daemon_or(settings, queue_here) as letters:
            return await call(letters)

    return asyncio.run(work(settings_of(opts)))


@asynccontextmanager
async def queue_here(settings: Settings) -> AsyncIterator[ParkedLetters]:
    """Open the queue and the conversations of the workspace in this process."""
    # `parked` starts sooner without a store in this process where a daemon answers.
    from gateway.service.parked import ParkedLetters
    from session.store.store import Store

    async with (
        attach.queue(settings) as mailbox,
        aclosing(Store(settings.workspace, zone=settings.zone)) as store,
    ):
        yield ParkedLetters(mailbox, store)
