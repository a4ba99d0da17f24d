"""What a chat was told is counted on when its conversation is cleared: a client resumes by that number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from session.store.store import Store
from tests.session.store_place import ADA, survivors, talk

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


async def test_so_it_has_where_the_lines_are_gone_already(store: Store) -> None:
    """Cleared again, all of it, also twice."""
    await talked(store)
    await store.clear(ADA)

    for _ in range(2):
        assert not await store.clear(ADA, everything=True)

    async with store.open(ADA) as session:
        assert session.seq == TOLD


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
        path = store.layout.journal(session.stem)
    assert path.exists()

    await store.clear(ADA, everything=True)

    assert not path.exists()


async def answered(store: Store) -> None:
    """Leave one session, of which the journal says nothing."""
    async with store.open(ADA) as session:
        await talk(session, *(f"sesame 2 {each}" for each in range(TOLD)))


@pytest.mark.parametrize("leave", [talked, answered])
@pytest.mark.parametrize("what", ["lines", "everything"])
async def test_wherever_it_dies_the_count_goes_on(store: Store, what: str, leave: Leave) -> None:
    """What still stands then is told to nobody once more, and cleared again it ends the same."""
    await leave(store)
    async for left in survivors("clearing_victim", store.layout.workspace, what):
        view = await left.look(ADA)
        assert view.seq == TOLD
        assert view.told(after=TOLD) == []

        await left.clear(ADA, everything=what == "everything")

        async with left.open(ADA) as session:
            assert session.seq == TOLD
            assert holding(left.layout.workspace, b"re: sesame 2") == []
            await talk(session, "after")
            assert session.seq_of("after") == TOLD + 1
