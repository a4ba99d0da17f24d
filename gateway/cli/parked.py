"""``parked list|show|retry|drop``: the letters that were set aside."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.settings import Settings

COLUMNS = ("id", "box", "key", "reason", "attempts", "parked_at")
Row = dict[str, Any]


class _Shelf(Protocol):
    """What both the running daemon and an opened queue can do with parked letters."""

    async def parked(self) -> list[Row]: ...
    async def parked_one(self, message_id: str, key: str | None) -> Row: ...
    async def retry(self, message_id: str, key: str | None) -> Row: ...
    async def drop(self, message_id: str, key: str | None) -> Row: ...


def list_(args: argparse.Namespace) -> int:
    """Print one row for each, oldest first."""

    async def work(settings: Settings) -> list[Row]:
        async with _shelf(settings) as shelf:
            return await shelf.parked()

    rows = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(rows)
        return 0
    output.rows(rows, COLUMNS)
    if not rows:
        output.words("nothing is parked")
    return 0


def show(args: argparse.Namespace) -> int:
    """Print one with its body."""

    async def work(settings: Settings) -> Row:
        async with _shelf(settings) as shelf:
            return await shelf.parked_one(args.id, args.key)

    found = attach.complete(work(settings_of(args)))
    if args.json:
        output.document(found)
        return 0
    for name, value in found.items():
        output.data(f"{name}: {value}")
    return 0


def retry(args: argparse.Namespace) -> int:
    """Put one back at the end of its queue."""

    async def work(settings: Settings) -> Row:
        async with _shelf(settings) as shelf:
            return await shelf.retry(args.id, args.key)

    found = attach.complete(work(settings_of(args)))
    output.words(f"{found['id']} is back in the {found['box']} queue")
    return 0


def drop(args: argparse.Namespace) -> int:
    """Remove one for good."""

    async def work(settings: Settings) -> Row:
        async with _shelf(settings) as shelf:
            return await shelf.drop(args.id, args.key)

    found = attach.complete(work(settings_of(args)))
    output.words(f"{found['id']} is dropped")
    return 0


@asynccontextmanager
async def _shelf(settings: Settings) -> AsyncIterator[_Shelf]:
    async with attach.daemon(settings) as client:
        if client is not None:
            yield client
            return
    from gateway.http.shelf import Shelf
    from session.store import Store

    async with attach.queue(settings) as mailbox:
        store = Store(settings.workspace, zone=settings.zone)
        try:
            yield Shelf(mailbox, store)
        finally:
            await store.aclose()
