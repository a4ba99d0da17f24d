"""What was under way when a conversation was cleared writes nothing of it afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from session.context.embeddings import Embeddings
from session.context.relevance import Relevance
from session.context.request import Asking, Request, TurnContext, TurnLimits
from session.disk.layout import Layout
from session.memory.notes import Mark
from session.memory.titles import SessionTitles
from session.memory.unconsolidated import UnconsolidatedReader
from session.models.model import Answer, Prompt
from session.models.spending import Meter
from session.store import archived
from session.store.cache import begin as index_work
from session.store.derived import FILE, Vectors, forget
from session.store.state import StoreState
from session.store.store import Session, Store, utc_now
from session.store.writer import TranscriptWriter
from session.tools import Toolbox
from session.transcript.lines import Lines
from tests.contracts.models import WordEmbedder
from tests.session.big_place import KEY, STEM, body, index_of, path_of, whole
from tests.session.memory_place import ADA, Scripted, open_workspace, saved, talk
from tests.session.store_place import Make, keep
from tests.support.guarantee import guarantee

pytestmark = guarantee("privacy", "Work in progress writes nothing of a conversation that has been cleared.")


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
        TurnContext(parts=(), files=store.layout.workspace, tools=()),
        model=Scripted(),
        toolbox=Toolbox([]),
        limits=TurnLimits(relevance=Relevance(always=0)),
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


async def compared(store: Store) -> None:
    """Have a session begin with a turn that compares texts to its end."""
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            pass


class KilledHere(Exception):
    """Stands for a kill: nothing that follows in this process happens."""


def holding(workspace: Path, text: bytes) -> list[Path]:
    """List the files that hold a text."""
    return [path for path in workspace.rglob("*") if path.is_file() and text in path.read_bytes()]


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
def store(make: Make) -> Store:
    return make()


# -- vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_turn_that_is_cleared_keeps_no_vector(
    store: Store, make: Make, tmp_path: Path, another: bool, goes_on: bool
) -> None:
    """Cleared by its own process or by another, also where a new session has begun since."""
    other = make()
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            await (other if another else store).clear(ADA)
            if goes_on:
                async with store.open(ADA) as after:
                    await after.append(talk(2))

    assert vectors_in(tmp_path) == 0


async def test_a_turn_of_an_ended_session_that_is_deleted_keeps_no_vector(
    store: Store, tmp_path: Path
) -> None:
    """It began before ``/new``; the lock has not changed hands."""
    async with store.open(ADA) as session:
        await session.append(talk(2))
        async with comparing(store, session, Gate()):
            old = session.session_id
            await session.end()
            assert await asyncio.to_thread(archived.delete, store.state, store.layout, ADA, session.stem, old)

    assert vectors_in(tmp_path) == 0


@pytest.mark.parametrize("everything", [False, True])
async def test_a_clear_that_is_refused_keeps_all(store: Store, tmp_path: Path, everything: bool) -> None:
    """Where another session is the active one, nothing of it is deleted."""
    await compared(store)

    assert await store.clear(ADA, of="01ARZ3NDEKTSV4RRFFQ69G5FAV", everything=everything) is False
    assert (vectors_in(tmp_path), len(await store.rows())) == (3, 1)
    assert await store.clear(ADA)
    assert vectors_in(tmp_path) == 0


@pytest.mark.slow
def test_vectors_that_cannot_be_picked_out_go_together(tmp_path: Path) -> None:
    """Another process writes for long: those of all conversations go, and are asked for again."""
    layout = Layout(tmp_path)
    vectors = Vectors(tmp_path / "state")
    keep(vectors, "words", "ada", {"a": [1.0]})
    holder = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    forget(layout, "ada")

    holder.execute("ROLLBACK")
    holder.close()
    assert vectors.read("words", "ada", ["a"]) == {}
    keep(vectors, "words", "ada", {"b": [1.0]})
    assert vectors.read("words", "ada", ["b"]).keys() == {"b"}
    vectors.close()


# -- memory ----------------------------------------------------------------------------------------------


class Looked(UnconsolidatedReader):
    """Lets something happen when it has been looked whether the messages still stand."""

    def __init__(self, store: Store, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._then = then

    async def holds(self, key: str, mark: Mark) -> bool:
        there = await super().holds(key, mark)
        await self._then()
        return there


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_answer_on_its_way_into_memory_stops_there(tmp_path: Path, deleted: bool) -> None:
    """The active session is cleared, or an ended one deleted, after the last look and before the files."""
    async with open_workspace(tmp_path, saved(entry="poison", memory="poison")) as workspace:
        await workspace.said(ADA, talk(10))
        session_id = (await workspace.store.look(ADA)).session_id
        if deleted:
            await workspace.new(ADA)

        async def gone() -> None:
            await workspace.store.clear(ADA)
            store = workspace.store
            await asyncio.to_thread(archived.delete, store.state, store.layout, ADA, "telegram_1", session_id)

        workspace.memory.unconsolidated = Looked(workspace.store, gone)
        await workspace.memory.consolidate(ADA, session_id=session_id)

        assert len(workspace.model.seen) == 1
        assert holding(tmp_path, b"poison") == []


async def test_an_answer_that_a_kill_left_is_dropped_at_the_next_start(tmp_path: Path) -> None:
    """It was stored, the session was cleared, and the process died before it looked again."""

    async def killed() -> None:
        await workspace.store.clear(ADA)
        raise KilledHere

    async with open_workspace(tmp_path, saved(entry="poison", memory="poison")) as workspace:
        await workspace.said(ADA, talk(10))
        workspace.memory.unconsolidated = Looked(workspace.store, killed)
        with pytest.raises(KilledHere):
            await workspace.memory.consolidate(ADA)
    assert len(holding(tmp_path, b"poison")) == 1

    async with open_workspace(tmp_path, run=True) as workspace:
        await workspace.jobs.looked.wait()

    assert holding(tmp_path, b"poison") == []


# -- the index of a big transcript -----------------------------------------------------------------------


def big_transcript(folder: Path) -> TranscriptWriter:
    """Put a transcript there that is worth an index."""
    path_of(folder).write_bytes(whole(body()))
    layout = Layout(folder)
    state = StoreState(folder / "state")
    return TranscriptWriter(layout, STEM, KEY, state=state, clock=utc_now)


async def test_an_index_that_comes_late_is_not_written(tmp_path: Path) -> None:
    """It was begun while the session was there; the transcript is cleared before it is put on disk."""
    writer = big_transcript(tmp_path)
    await writer.state.open()
    writer.refresh()
    assert isinstance(writer.transcript.messages, Lines)
    late = index_work(writer, writer.transcript.messages)
    index_of(tmp_path).parent.mkdir(parents=True, exist_ok=True)
    index_of(tmp_path).with_suffix(".new").write_bytes(b"what a kill left")

    await asyncio.to_thread(writer.remove)
    late()

    assert list(index_of(tmp_path).parent.iterdir()) == []
    await writer.state.aclose()


# -- everything of a chat --------------------------------------------------------------------------------


async def test_clearing_everything_is_one_step_for_who_writes_meanwhile(tmp_path: Path) -> None:
    """A summary and an answer that were under way find neither the ended session nor a folder for notes."""
    async with open_workspace(tmp_path, saved(entry="poison", memory="poison")) as workspace:
        await workspace.said(ADA, talk(10))
        session_id = (await workspace.store.look(ADA)).session_id
        await workspace.new(ADA)
        await workspace.said(ADA, talk(2, start=10))

        async def gone() -> None:
            assert await workspace.store.clear(ADA, everything=True, ids=["running"])

        async def late(_: Prompt) -> Answer:
            await gone()
            return Answer("poison")

        workspace.memory.unconsolidated = Looked(workspace.store, gone)
        await workspace.memory.consolidate(ADA, session_id=session_id)
        workspace.memory.unconsolidated = UnconsolidatedReader(workspace.store)
        await workspace.said(ADA, talk(10))
        session_id = (await workspace.store.look(ADA)).session_id
        await workspace.new(ADA)
        await workspace.said(ADA, talk(2))
        workspace.model.wrote = [late]
        await SessionTitles(workspace.memory, workspace.store).summarise(ADA, session_id)

        assert len(workspace.model.prose) == 1
        assert holding(tmp_path, b"poison") == holding(tmp_path, b'"message ') == []
        assert list(tmp_path.rglob("*.md")) == list((tmp_path / "sessions").rglob("*.jsonl")) == []
        async with workspace.store.open(ADA) as session:
            assert session.journal.known("running") is not None
            assert await session.append(talk(2)) == 0
