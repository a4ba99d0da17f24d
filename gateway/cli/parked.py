"""``parked list|show|retry|drop``: the letters that were set aside."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.settings import Settings

COLUMNS = ("id", "box", "key", "reason", "attempts", "parked_at")
T = TypeVar("T")
Row = dict[str, Any]


class _ParkedLetters(Protocol):
    """What both the running daemon and an opened queue can do with parked letters."""

    async def parked(self) -> list[Row]: ...
    async def parked_one(self, message_id: str, key: str | None) -> Row: ...
    async def retry(self, message_id: str, key: str | None) -> Row: ...
    async def drop(self, message_id: str, key: str | None) -> Row: ...


def list_(args: argparse.Namespace) -> int:
    """Print one row for each, oldest first."""
    rows = _asked(args, lambda letters: letters.parked())
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words("no parked messages")
    return 0


def show(args: argparse.Namespace) -> int:
    """Print one with its body."""
    found = _asked(args, lambda letters: letters.parked_one(args.id, args.key))
    if args.json:
        output.document(found)
        return 0
    for name, value in found.items():
        output.shown(f"{name}: {value}")
    return 0


def retry(args: argparse.Namespace) -> int:
    """Put one back at the end of its queue."""
    found = _asked(args, lambda letters: letters.retry(args.id, args.key))
    output.words(f"{found['id']} is back in the {found['box']} queue")
    return 0


def drop(args: argparse.Namespace) -> int:
    """Remove one for good."""
    found = _asked(args, lambda letters: letters.drop(args.id, args.key))
    output.words(f"{found['id']} is deleted")
    return 0


def _asked(args: argparse.Namespace, call: Callable[[_ParkedLetters], Awaitable[T]]) -> T:
    """Ask the running daemon, or the queue where none runs."""

    async def work(settings: Settings) -> T:
        async with attach.daemon_or(settings, _queue_here) as letters:
            return await call(letters)

    return attach.complete(work(settings_of(args)))


@asynccontextmanager
async def _queue_here(settings: Settings) -> AsyncIterator[_ParkedLetters]:
    # `parked` starts sooner without a store in this process where a daemon answers.
    from gateway.service.parked import ParkedLetters
    from session.store.store import Store

    async with (
        attach.queue(settings) as mailbox,
        aclosing(Store(settings.workspace, zone=settings.zone)) as store,
    ):
        yield ParkedLetters(mailbox, store)
