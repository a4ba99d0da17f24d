"""What was under way when a conversation was cleared writes nothing of it afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

import pytest

from session import ended
from session.disk import Layout
from session.embeddings import Embeddings
from session.fence import Fence
from session.models import Meter
from session.relevance import Relevance
from session.request import Asking, Limits, Request, Surroundings
from session.store import Session, Store
from session.testing import WordEmbedder
from session.tools import Toolbox
from session.vectors import FILE, Vectors, forget
from tests.session.memory_place import ADA, Scripted, talk


class Gate:
    """Stops a request to the embedding model until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.open.wait()


@asynccontextmanager
async def comparing(store: Store, session: Session, gate: Gate) -> AsyncIterator[None]:
    """Compare texts of a session as a turn does, held in the middle; at the end all is written."""
    words = WordEmbedder()
    words.steps.append(gate)
    embeddings = Embeddings(words, store.layout.workspace / "state", limit_s=60)
    asking = Asking(
        session,
        Request("new", ADA, "a new message"),
        Surroundings(parts=(), files=store.layout.workspace, tools=()),
        model=Scripted(),
        toolbox=Toolbox([]),
        limits=Limits(relevance=Relevance(always=0)),
        workspace=None,
        embeddings=embeddings,
        meter=Meter(),
    )
    asked = asyncio.ensure_future(asking.prompt({"role": "user", "content": "a new message"}))
    await gate.reached.wait()
    try:
        yield
    finally:
        gate.open.set()
        await asked
        assert words.asked == [["a new message", "message 0", "message 1"]]
        await embeddings.aclose()


def vectors_in(workspace: Path) -> int:
    path = workspace / "state" / FILE
    if not path.exists():
        return 0
    file = sqlite3.connect(path)
    try:
        return int(file.execute("SELECT count(*) FROM vectors").fetchone()[0])
    finally:
        file.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, zone=UTC)
    yield store
    await store.aclose()


# -- vectors ---------------------------------------------------------------------------------------------


async def test_a_turn_that_was_not_cleared_keeps_its_vectors(store: Store, tmp_path: Path) -> None:
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            pass

    assert vectors_in(tmp_path) == 3
    assert await store.clear(ADA)
    assert vectors_in(tmp_path) == 0


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_turn_that_is_cleared_keeps_no_vector(
    store: Store, tmp_path: Path, another: bool, goes_on: bool
) -> None:
    """Cleared by its own process or by another, also where a new session has begun since."""
    other = Store(tmp_path, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            await (other if another else store).clear(ADA)
            if goes_on:
                async with store.open(ADA) as after:
                    await after.append(talk(2))

    assert vectors_in(tmp_path) == 0
    await other.aclose()


async def test_a_turn_of_an_ended_session_that_is_deleted_keeps_no_vector(
    store: Store, tmp_path: Path
) -> None:
    """It began before ``/new``; the lock has not changed hands."""
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            old = session.session_id
            await session.end()
            fence = Fence(store.layout, session.stem, owner=store.owner, freeze_s=30)
            assert ended.delete(fence, store.layout, session.stem, old)

    assert vectors_in(tmp_path) == 0


async def test_a_turn_of_an_older_epoch_keeps_no_vector(store: Store, tmp_path: Path) -> None:
    """A clear may die between the vectors and the transcript; it raises the epoch before both."""
    other = Store(tmp_path, zone=UTC)
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()), other.open(ADA) as taken:
            assert len(taken) == 2

    assert vectors_in(tmp_path) == 0
    await other.aclose()


async def test_a_clear_that_is_refused_keeps_the_vectors(store: Store, tmp_path: Path) -> None:
    """Where another session is the active one, nothing of it is deleted."""
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            pass

    assert await store.clear(ADA, of="01ARZ3NDEKTSV4RRFFQ69G5FAV") is False
    assert vectors_in(tmp_path) == 3


def test_vectors_that_cannot_be_picked_out_go_together(tmp_path: Path) -> None:
    """Another process writes for long: those of all conversations go, and are asked for again."""
    layout = Layout(tmp_path)
    vectors = Vectors(tmp_path / "state")
    vectors.write("words", "ada", {"a": [1.0]})
    holder = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    forget(layout, "ada")

    holder.execute("ROLLBACK")
    holder.close()
    assert vectors.read("words", "ada", ["a"]) == {}
    vectors.write("words", "ada", {"b": [1.0]})
    assert vectors.read("words", "ada", ["b"]).keys() == {"b"}
    vectors.close()
