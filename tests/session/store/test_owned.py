"""What is looked at before a turn of a key that this process owns: transcript and lock, not the journal."""

from __future__ import annotations

import json
import resource
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.errors import StoreError
from session.store.store import Store
from session.transcript.key import SessionKey

ADA = SessionKey("telegram:1")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    both = Store(tmp_path, zone=UTC), Store(tmp_path, zone=UTC)
    yield both
    for store in both:
        await store.aclose()


async def conclude(store: Store, id_: str, text: str = "") -> None:
    async with store.open(ADA) as session:
        await session.journal.conclude(id_, "command", text=text)


async def knows(store: Store, id_: str) -> bool:
    async with store.open(ADA) as session:
        return session.journal.known(id_) is not None


async def test_what_another_owner_noted_is_known(stores: tuple[Store, Store]) -> None:
    """Its claim shows in the lock, so that the journal is read again."""
    ours, theirs = stores
    await conclude(ours, "a")

    await conclude(theirs, "b")

    assert await knows(ours, "b")
    assert await knows(theirs, "a")


async def test_after_an_entry_that_failed_the_journal_is_read_again(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    """How much of it reached the disk is only known from the disk."""
    store, _ = stores
    await conclude(store, "a")
    path = Layout(tmp_path).journal(await store.stem(ADA))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
    try:
        with pytest.raises(StoreError):
            await conclude(store, "failed", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    entry = {"at": "2999-01-01T00:00:00+00:00", "do": "end", "id": "there", "kind": "command"}
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")

    assert await knows(store, "there")
    assert await knows(store, "a")
    assert not await knows(store, "failed")
