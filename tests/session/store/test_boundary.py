"""A session that ends for silence: nothing is lost, whatever dies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.store.store import Store
from session.store.switch_session import Swap
from session.transcript import archive
from session.transcript.history import visible
from session.transcript.transcript import make_line
from tests.session.boundary_place import KEY, apart, part, reopen, state, texts
from tests.session.store_place import NOW, archives_in, survivors, talk
from tests.support.guarantee import guarantee


async def test_a_boundary_and_what_it_leaves(store: Store) -> None:
    """The fresh session knows its message and its archive; a name or an end goes over to no other."""
    old, new = await apart(store)
    found = archive.find(store.layout, old)
    assert found is not None

    async with store.open(KEY) as session:
        assert session.metadata["parted_by"] == "late"
        assert session.metadata["parted_from"] == found.path.name
        assert session.metadata["previous_session"] == old
        assert [told.seq for told in session.told()] == [1, 2, 3, 4]
        await session.end()
        assert not {"parted_by", "parted_from"} & set(session.metadata)
    assert new != old
    assert not await part(store), "there is no message to archive"


async def test_no_boundary_in_the_middle_of_an_exchange_nor_unasked(store: Store) -> None:
    async with store.open(KEY) as session:
        await talk(session, "a")
        assert not await part(store, due=False)
        await session.append([make_line("user", "q", NOW, message_id="run")])
        assert not await part(store)
        await session.journal.conclude("run", "parked", reason="attempts")
    assert await part(store)


async def test_both_sides_of_a_boundary_are_put_together(store: Store) -> None:
    """Lines in order and once, records still name their messages, each reply keeps its number."""
    old, new = await apart(store)
    async with store.open(KEY) as session:
        undo = make_line("system", "", NOW, kind="undo", message_id="u", **{"from": 2})
        await session.append([undo])
        await talk(session, "d")
    before = store.layout.transcript("telegram_1").read_bytes().split(b"\n")[1:]

    assert await reopen(store, old) == Swap(old, "")

    # The exchange that was withdrawn stands there, and is not counted.
    assert await state(store) == {old: (True, 8)}
    assert new not in {found.session_id for found in archive.everywhere(store.layout)}
    after = store.layout.transcript("telegram_1").read_bytes().split(b"\n")[1:]
    assert [raw for raw in after[4:] if b'"undo"' not in raw] == [
        raw for raw in before if b'"undo"' not in raw
    ]
    async with store.open(KEY) as session:
        assert texts(session) == [
            "a",
            "re: a",
            "b",
            "re: b",
            "late",
            "re: late",
            "c",
            "re: c",
            "",
            "d",
            "re: d",
        ]
        assert session.line(8)["from"] == 6
        sent = visible(session.lines(), last_consolidated=session.history_start, running_id=None)
        assert [line["content"] for line in sent][-3:] == ["re: late", "d", "re: d"]
        assert [(told.seq, told.id) for told in session.told()] == list(
            enumerate(["a", "b", "late", "c", "d"], 1)
        )
        assert session.find("late") is not None
        await talk(session, "e")
        assert session.seq_of("e") == 6


async def test_a_turn_that_runs_behind_the_boundary_goes_on(store: Store) -> None:
    """Its first line moves with the others, and its id does not count as ended."""
    old, _ = await apart(store)
    async with store.open(KEY) as session:
        await session.append([make_line("user", "q", NOW, message_id="run")])
    await reopen(store, old)

    async with store.open(KEY) as session:
        assert texts(session)[-1] == "q"
        assert session.journal.known("run") is None
        assert (found := session.find("run")) is not None
        assert found.tail


@pytest.mark.parametrize("what", ["compacted", "consolidated", "resumed between"])
async def test_what_cannot_be_put_together_is_swapped(store: Store, what: str) -> None:
    """Where part of the later session has left the sight of the model, or the older one went on."""
    old, new = await apart(store)
    async with store.open(KEY) as session:
        if what == "compacted":
            await session.append([make_line("system", "s", NOW, kind="overlay", first_kept=2)])
        elif what == "consolidated":
            await session.checkpoint(last_consolidated=2)
        else:
            await session.checkpoint(metadata={"parted_from": "20260101T000000Z-" + old + ".jsonl"})

    assert await reopen(store, old) == Swap(old, new)
    assert {id_: active for id_, (active, _) in (await state(store)).items()} == {old: True, new: False}


@guarantee("once", "A session that ends after silence ends once and announces it once, across kills.")
async def test_a_boundary_that_dies_anywhere_is_drawn_once(store: Store, tmp_path: Path) -> None:
    """The session is whole on one side of it; the message that comes again gets to its end."""
    async with store.open(KEY) as session:
        await talk(session, "a", "b")
        old = session.session_id
    seen = []
    async for left in survivors("boundary_victim", tmp_path / "w", "part", old):
        rows = await state(left)
        seen.append(rows[old][0])
        assert (await left.look(KEY)).journal.known("late") is None
        async with left.open(KEY) as session:
            assert [told.id for told in session.told()] == ["a", "b"]
            begun = session.metadata.get("parted_by") == "late"
        assert begun is not rows[old][0]
        assert await part(left) is not begun
        assert len(archives_in(left)) == 1
        async with left.open(KEY) as session:
            assert len(session) == 0
            await talk(session, "late")
            assert [told.seq for told in session.told()] == [1, 2, 3]
        assert await state(left) == {old: (False, 4), session.session_id: (True, 2)}
    assert {True, False} == set(seen)


@guarantee(
    "once", "`/resume` joins a session that ended after silence again, without losing or repeating a line."
)
async def test_putting_together_that_dies_anywhere_loses_and_repeats_nothing(
    store: Store, tmp_path: Path
) -> None:
    """Two sessions or one, never a line twice; the command that comes again ends in one."""
    old, new = await apart(store)
    seen = []
    async for left in survivors("boundary_victim", tmp_path / "w", "reopen", old):
        rows = await state(left)
        seen.append(rows[old][0])
        assert rows in ({old: (True, 8)}, {old: (False, 4), new: (True, 4)})
        assert [told.seq for told in (await left.look(KEY)).told()] == [1, 2, 3, 4]
        assert await reopen(left, old, by="cmd") == Swap(old, "")
        assert await state(left) == {old: (True, 8)}
        assert not archives_in(left)
        async with left.open(KEY) as session:
            assert texts(session)[::2] == ["a", "b", "late", "c"]
            assert [told.seq for told in session.told()] == [1, 2, 3, 4]
            await talk(session, "d")
            assert session.seq_of("d") == 5
    assert {True, False} == set(seen)
