"""Sessions are opened again, closed or end for silence: nothing is lost, whatever dies on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from session.errors import NoSession
from session.store import rollover
from session.store.rollover import Swap
from session.store.store import Store
from session.transcript import archive
from session.transcript.history import visible
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.store_place import (
    ADA,
    NOW,
    apart,
    archives_in,
    part,
    reopen,
    state,
    survivors,
    talk,
    texts,
    two,
)
from tests.support.guarantee import guarantee

BOB = SessionKey("telegram:2")


async def test_an_older_session_goes_on_under_its_own_ulid(store: Store) -> None:
    """The active one is archived; the old one keeps ULID, name and lines, and has no end any more."""
    old, new = await two(store)
    found = archive.find(store.layout, old)
    assert found is not None
    before = found.path.read_bytes().split(b"\n")[1:]

    assert await reopen(store, old) == Swap(old, new)

    head, *lines = store.layout.transcript("telegram_1").read_bytes().split(b"\n")
    assert (lines, json.loads(head)["last_consolidated"]) == (before, 2)
    assert archive.find(store.layout, old) is None
    assert await state(store) == {old: (True, 4), new: (False, 2)}
    async with store.open(ADA) as session:
        assert texts(session) == ["a", "re: a", "b", "re: b"]
        assert session.metadata["name"] == "First"
        assert not {"ended_at", "summary"} & set(session.metadata)
        await talk(session, "d")
    assert await reopen(store, new) == Swap(new, old)
    assert await state(store) == {old: (False, 6), new: (True, 2)}


async def test_what_went_into_memory_since_the_end_is_sent_again(store: Store) -> None:
    """The history begins where it began when the session ended, until consolidation moves on."""
    old, _ = await two(store)
    found = archive.find(store.layout, old)
    assert found is not None
    path = found.path
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps(json.loads(head) | {"last_consolidated": 4}).encode() + b"\n" + rest)

    await reopen(store, old)

    async with store.open(ADA) as session:
        assert (session.last_consolidated, session.history_start) == (4, 2)
        sent = visible(session.lines(), last_consolidated=session.history_start, running_id=None)
        assert [line["content"] for line in sent] == ["b", "re: b"]
        await talk(session, "d")
        await session.checkpoint(last_consolidated=5)
        assert session.history_start == 5


async def test_ids_and_replies_stay_known_and_are_counted_once(store: Store) -> None:
    """Every reply keeps its number over both changes, and the count goes on."""
    old, new = await two(store)
    async with store.open(ADA) as session:
        before = [(told.seq, told.id) for told in session.told()]
    await reopen(store, old)

    async with store.open(ADA) as session:
        assert [(told.seq, told.id) for told in session.told()] == before == [(1, "a"), (2, "b"), (3, "c")]
        assert (known := session.journal.known("c")) is not None
        assert known.text == "re: c"
        await talk(session, "d")
        assert session.seq == session.seq_of("d") == 4
    await reopen(store, new)
    async with store.open(ADA) as session:
        await talk(session, "e")
        assert [(told.seq, told.id) for told in session.told(3)] == [(4, "d"), (5, "e")]


async def test_a_session_of_another_key_is_refused(store: Store) -> None:
    """Neither by its ULID nor by a file put into the folder does a chat get another's lines."""
    await two(store)
    theirs, _ = await two(store, BOB)
    found = archive.find(store.layout, theirs)
    assert found is not None

    with pytest.raises(NoSession):
        await reopen(store, theirs)
    planted = store.layout.archive("telegram_1") / found.path.name
    planted.write_bytes(found.path.read_bytes())
    with pytest.raises(NoSession):
        await reopen(store, theirs)

    async with store.open(ADA) as session:
        assert texts(session) == ["c", "re: c"]


async def test_without_an_active_session(store: Store) -> None:
    """A closed conversation can be opened again; an empty session leaves no archive."""
    old, _ = await two(store)
    async with store.open(ADA) as session:
        new = session.session_id
        assert await session.change(lambda *writers: rollover.close(*writers, of=old)) is None
        assert await session.change(lambda *writers: rollover.close(*writers, of=None)) == new
        assert not session.path.exists()
    assert await state(store) == {old: (False, 4), new: (False, 2)}

    assert await reopen(store, old) == Swap(old, "")
    assert await state(store) == {old: (True, 4), new: (False, 2)}
    async with store.open(ADA) as session:
        await session.end()
    assert await reopen(store, new) == Swap(new, "")
    assert await state(store) == {old: (False, 4), new: (True, 2)}


async def test_a_turn_that_runs_goes_on_behind(store: Store) -> None:
    """Its lines are in the session that is active now, once; a close leaves them a fresh one."""
    old, new = await two(store)
    running = [make_line("user", "q", NOW, message_id="run")]
    async with store.open(ADA) as session:
        await session.append(running)
    await reopen(store, old)

    async with store.open(ADA) as session:
        assert texts(session)[-2:] == ["re: b", "q"]
        assert (found := session.find("run")) is not None
        assert found.tail
        assert await session.change(lambda *writers: rollover.close(*writers, of=None)) == old
        assert texts(session) == ["q"]
        assert await session.change(lambda *writers: rollover.close(*writers, of=None)) is None
    assert (await state(store))[new] == (False, 2)


async def test_a_damaged_session_is_opened_and_its_bytes_are_kept(store: Store) -> None:
    """What could be read goes on; the file as it was lies beside the archive."""
    old, _ = await two(store)
    found = archive.find(store.layout, old)
    assert found is not None
    path = found.path
    path.write_bytes(path.read_bytes() + b'{"role": "us\n' + b'{"role":"user","content":"late"}\n')
    bytes_before = path.read_bytes()

    await reopen(store, old)

    async with store.open(ADA) as session:
        assert texts(session)[-1] == "late"
        assert not session.transcript.needs_checkpoint
    [kept] = path.parent.glob("*.corrupt-*")
    assert kept.read_bytes() == bytes_before


@guarantee("sessions", "A session that is reopened or closed stays complete, wherever the gateway is killed.")
async def test_reopening_that_dies_anywhere_leaves_one_of_two_states(store: Store, tmp_path: Path) -> None:
    """Before or after, never between; the next try by the same command gets to its end, and counts once."""
    old, new = await two(store)
    seen = []
    async for left in survivors("store_victim", tmp_path / "w", "reopen", old):
        found = await state(left)
        seen.append(found[old][0])
        assert found in ({old: (True, 4), new: (False, 2)}, {old: (False, 4), new: (True, 2)})
        assert [told.seq for told in (await left.look(ADA)).told()] == [1, 2, 3]
        assert await reopen(left, old, by="cmd") == Swap(old, new)
        assert await state(left) == {old: (True, 4), new: (False, 2)}
        assert len(archives_in(left)) == 1
        async with left.open(ADA) as session:
            assert texts(session) == ["a", "re: a", "b", "re: b"]
            assert [told.seq for told in session.told()] == [1, 2, 3]
            await talk(session, "d")
            assert session.seq_of("d") == 4
    assert {True, False} == set(seen)


async def test_a_close_that_dies_anywhere_leaves_one_of_two_states(store: Store, tmp_path: Path) -> None:
    """The session is active or ended, and a second close ends it."""
    old, new = await two(store)
    async for left in survivors("store_victim", tmp_path / "w", "close", new):
        found = await state(left)
        assert found in ({old: (False, 4), new: (False, 2)}, {old: (False, 4), new: (True, 2)})
        async with left.open(ADA) as session:
            await session.change(lambda *writers: rollover.close(*writers, of=None))
        assert await state(left) == {old: (False, 4), new: (False, 2)}
        assert len(archives_in(left)) == 2
        await left.aclose()


# -- sessions that ended for silence ---------------------------------------------------------------------


async def test_no_boundary_in_the_middle_of_an_exchange_nor_unasked(store: Store) -> None:
    async with store.open(ADA) as session:
        await talk(session, "a")
        assert not await part(store, due=False)
        await session.append([make_line("user", "q", NOW, message_id="run")])
        assert not await part(store)
        await session.journal.conclude("run", "parked", reason="attempts")
    assert await part(store)


async def test_both_sides_of_a_boundary_are_put_together(store: Store) -> None:
    """Lines in order and once, records still name their messages, each reply keeps its number."""
    old, new = await apart(store)
    async with store.open(ADA) as session:
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
    async with store.open(ADA) as session:
        assert texts(session)[::2] == ["a", "b", "late", "c", "", "re: d"]
        assert texts(session)[9] == "d"
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
    async with store.open(ADA) as session:
        await session.append([make_line("user", "q", NOW, message_id="run")])
    await reopen(store, old)

    async with store.open(ADA) as session:
        assert texts(session)[-1] == "q"
        assert session.journal.known("run") is None
        assert (found := session.find("run")) is not None
        assert found.tail


@pytest.mark.parametrize("what", ["compacted", "consolidated", "resumed between"])
async def test_what_cannot_be_put_together_is_swapped(store: Store, what: str) -> None:
    """Where part of the later session has left the sight of the model, or the older one went on."""
    old, new = await apart(store)
    async with store.open(ADA) as session:
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
    async with store.open(ADA) as session:
        await talk(session, "a", "b")
        old = session.session_id
    seen = []
    async for left in survivors("store_victim", tmp_path / "w", "part", old):
        rows = await state(left)
        seen.append(rows[old][0])
        assert (await left.look(ADA)).journal.known("late") is None
        async with left.open(ADA) as session:
            assert [told.id for told in session.told()] == ["a", "b"]
            begun = session.metadata.get("parted_by") == "late"
        assert begun is not rows[old][0]
        assert await part(left) is not begun
        assert len(archives_in(left)) == 1
        async with left.open(ADA) as session:
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
    async for left in survivors("store_victim", tmp_path / "w", "reopen", old):
        rows = await state(left)
        seen.append(rows[old][0])
        assert rows in ({old: (True, 8)}, {old: (False, 4), new: (True, 4)})
        assert [told.seq for told in (await left.look(ADA)).told()] == [1, 2, 3, 4]
        assert await reopen(left, old, by="cmd") == Swap(old, "")
        assert await state(left) == {old: (True, 8)}
        assert not archives_in(left)
        async with left.open(ADA) as session:
            assert texts(session)[::2] == ["a", "b", "late", "c"]
            assert [told.seq for told in session.told()] == [1, 2, 3, 4]
            await talk(session, "d")
            assert session.seq_of("d") == 5
    assert {True, False} == set(seen)
