"""What a chat was told is counted on when its conversation is cleared, and no answer of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path

import pytest

from session.store import archived
from session.store.store import Store
from tests.session.store_place import ADA, survivors, talk, turn

Leave = Callable[[Store], Awaitable[None]]
SESSIONS, ANSWERS = 3, 2
TOLD = SESSIONS * ANSWERS + 2


async def talked(store: Store) -> None:
    """Leave two ended sessions and an active one; a command was answered, and a notice given."""
    async with store.open(ADA) as session:
        for number in range(SESSIONS):
            if number:
                await session.end()
            await talk(session, *(f"sesame {number} {each}" for each in range(ANSWERS)))
        await session.journal.conclude("command", "command", text="sesame done")
        await session.journal.note("late", reason="outage", text="sesame waits")
        await session.journal.choose("chosen", "sesame")
        assert session.seq == TOLD


def holding(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


@pytest.mark.parametrize("everything", [False, True])
async def test_the_next_answer_has_the_next_number(store: Store, everything: bool) -> None:
    """An open stream would take a lower one for shown, and who resumes would not be told of it."""
    await talked(store)

    assert await store.clear(ADA, everything=everything)

    async with store.open(ADA) as session:
        assert session.seq == TOLD
        await talk(session, "after")
        assert session.seq_of("after") == TOLD + 1
        assert [told.id for told in session.told(after=TOLD)] == ["after"]


async def test_nothing_else_of_the_chat_is_left(store: Store) -> None:
    """Neither a text nor a choice; the messages of the session that was active are asked no more."""
    await talked(store)

    await store.clear(ADA, ids=["running"], everything=True)

    workspace = store.layout.workspace
    assert holding(workspace, b"sesame done") == holding(workspace, b"re: sesame") == []
    async with store.open(ADA) as session:
        assert session.journal.agent is None
        assert session.told() == []
        assert session.journal.known("sesame 2 0") is not None
        assert session.journal.known("running") is not None
        assert session.journal.known("command") is None


async def test_of_a_chat_that_was_told_nothing_no_journal_is_left(store: Store) -> None:
    async with store.open(ADA) as session:
        await session.journal.choose("chosen", "sesame")
    assert await store.state.journals_of("telegram") == [ADA]

    await store.clear(ADA, everything=True)

    assert await store.state.journals_of("telegram") == []


async def answered(store: Store) -> None:
    """Leave one session, of which the journal says nothing."""
    async with store.open(ADA) as session:
        await talk(session, *(f"sesame 2 {each}" for each in range(TOLD)))


@pytest.mark.parametrize("leave", [talked, answered])
@pytest.mark.parametrize("what", ["lines", "everything"])
async def test_wherever_it_dies_the_count_goes_on(store: Store, what: str, leave: Leave) -> None:
    """What still stands then is told to nobody once more, and cleared again it ends the same."""
    await leave(store)
    async for left in survivors("store_victim", store.layout.workspace, what):
        view = await left.look(ADA)
        assert view.seq == TOLD
        assert view.told(after=TOLD) == []

        await left.clear(ADA, everything=what == "everything")

        async with left.open(ADA) as session:
            assert session.seq == TOLD
            assert holding(left.layout.workspace, b"re: sesame 2") == []
            await talk(session, "after")
            assert session.seq_of("after") == TOLD + 1


async def test_no_answer_of_a_deleted_session_stays_in_the_journal(tmp_path: Path) -> None:
    """Its messages, which may come again, stay known; those of other sessions as they were."""
    store = Store(tmp_path, zone=UTC)
    for id_, answer in (("a", "sesame"), ("b", "of the next one")):
        async with store.open(ADA) as session:
            lines = turn(id_, answer=answer)
            # The journal keeps those of two days.
            now = store.clock().isoformat()
            await session.append([{**line, "timestamp": now} for line in lines])
            await session.journal.conclude(f"command {id_}", "command", text="done")
            ended, stem = session.session_id, session.stem
            await session.end()
            if id_ == "a":
                first = ended
    assert "sesame" in str(await store.state.journals([ADA]))
    before = (await store.look(ADA)).seq

    assert await asyncio.to_thread(archived.delete, store.state, store.layout, ADA, stem, first)
    store.forget(ADA)
    await store.state.compact()

    assert b"sesame" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "of the next one" in str(await store.state.journals([ADA]))
    async with store.open(ADA) as session:
        await session.journal.conclude("c", "silent")
        known = {id_: session.journal.known(id_) for id_ in "ab"}
        assert [(each.kind, each.text) for each in known.values() if each is not None] == [
            ("cleared", ""),
            ("archived", "of the next one"),
        ]
    assert (await store.look(ADA)).seq == before == 4
    await store.aclose()
