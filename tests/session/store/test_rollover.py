"""A session that ends by a compaction: its archive is whole, the next goes on, whatever dies on the way."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from session.context.request import lines_from, sent_from
from session.memory.unconsolidated import UnconsolidatedReader
from session.store import rollover
from session.store.listing import search
from session.store.store import Session, Store
from session.transcript import archive
from session.transcript.history import visible
from session.transcript.lines import Lines
from session.transcript.transcript import Transcript, decode, encode, make_line, parse
from tests.session.store_place import ADA, NOW, roll, survivors, talk
from tests.support.guarantee import guarantee


async def undo(session: Session, since: int) -> None:
    await session.append([make_line("system", "", NOW, kind="undo", message_id="u", **{"from": since})])


def archived(store: Store, session_id: str) -> Transcript:
    found = archive.find(store.layout, session_id)
    assert found is not None
    return parse(found.path.read_bytes(), stem=found.stem)


def texts(lines: Any) -> list[str]:
    return [line["content"] for line in lines]


def sent(session: Session) -> list[str]:
    """What a model would be sent."""
    first = sent_from(session.transcript)
    shown = visible(
        lines_from(session.transcript, first),
        last_consolidated=session.history_start - first,
        running_id=None,
    )
    return [message["content"] for message in shown]


async def test_the_archive_is_whole_and_what_is_kept_follows_the_summary(store: Store) -> None:
    """The compact line says how many lines behind it are copies."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c", "d")
        await session.checkpoint(metadata={"name": "Plans", "instructions": "Be brief."})
        old = session.session_id

        assert await roll(session, 4) == old

        [name] = [path.name for path in store.layout.archive("telegram_1").iterdir()]
        assert texts(session.lines()) == ["S", "c", "re: c", "d", "re: d"]
        assert session.line(0)["metadata"] == {"type": "compact", "previousSession": name}
        assert session.line(0)["kept"] == 4
        assert session.metadata["previous_session"] == old != session.session_id
        assert (session.metadata["name"], session.metadata["instructions"]) == ("Plans", "Be brief.")
        assert sent(session) == ["c", "re: c", "d", "re: d"]
    ended = archived(store, old)
    said = ["a", "re: a", "b", "re: b", "c", "re: c", "d", "re: d"]
    assert texts(map(decode, ended.messages)) == said
    assert (ended.inner["ended_by"], "summary" in ended.inner) == ("compaction", False)
    assert "ended_at" in ended.inner


async def test_ids_and_the_numbers_of_replies_go_on(store: Store) -> None:
    """Archived and kept replies keep their numbers, and a repeat of either is recognised."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c")
        await session.journal.conclude("n", "notice", text="busy", reason="busy")
        await talk(session, "d")
        before = [(told.seq, told.id) for told in session.told()]
        await roll(session, 4)

        assert [(told.seq, told.id) for told in session.told()] == before
        assert [session.seq_of(id_) for id_ in "abcd"] == [1, 2, 3, 5]
        assert (known := session.journal.known("a")) is not None
        assert (known.kind, known.text) == ("archived", "re: a")
        assert (found := session.find("d")) is not None
        assert found.final == 4
        await talk(session, "e")
        assert session.seq_of("e") == session.seq == 6
    again = Store(store.layout.sessions.parent, zone=UTC)
    view = await again.look(ADA)
    assert [told.seq for told in view.told()] == [1, 2, 3, 4, 5, 6]
    await again.aclose()


@pytest.mark.parametrize("offset", [0, 3, 4, 6, 8])
async def test_nothing_is_consolidated_twice_or_never(store: Store, offset: int) -> None:
    """The archive owes to memory what it did not give yet, the copies nothing; all that is kept is sent."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c", "d")
        await session.checkpoint(last_consolidated=offset)
        old = session.session_id
        await roll(session, 4)

        assert session.last_consolidated == 5
        assert sent(session) == ["c", "re: c", "d", "re: d"]
        await talk(session, "e")
        owed = [await UnconsolidatedReader(store).load(ADA, id_) for id_ in (old, session.session_id)]
    said = ["a", "re: a", "b", "re: b", "c", "re: c", "d", "re: d"]
    assert [texts(stretch.lines) for stretch in owed if stretch] == [said[offset:], ["e", "re: e"]]


async def test_a_turn_that_memory_has_a_part_of_is_not_owed_again(store: Store) -> None:
    """What was consolidated of the lines that move over stays so."""
    async with store.open(ADA) as session:
        await talk(session, "a")
        await session.append([make_line("user", text, NOW, message_id="run") for text in ("q", "r")])
        await session.checkpoint(last_consolidated=3)
        await roll(session, 2)

        assert texts(session.lines()) == ["S", "q", "r"]
        assert session.last_consolidated == 2


async def test_a_withdrawal_over_the_cut_holds_on_both_sides(store: Store) -> None:
    """And one behind it counts its lines anew."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c")
        # It takes b and c.
        await undo(session, 2)
        await talk(session, "d", "e")
        # It takes e.
        await undo(session, 9)
        old = session.session_id
        await roll(session, 4)

        assert sent(session) == ["d", "re: d"]
    ended = archived(store, old)
    said = ["a", "re: a", "b", "re: b", "c", "re: c", "", "d", "re: d", "e", "re: e", ""]
    assert texts(map(decode, ended.messages)) == said
    assert decode(ended.messages[6])["from"] == 2
    shown = visible([decode(raw) for raw in ended.messages], last_consolidated=0, running_id=None)
    assert texts(shown) == ["a", "re: a", "d", "re: d"]


async def test_an_overlay_is_taken_in(store: Store) -> None:
    """It stays with what it stood for, and says nothing in the new session."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b")
        await session.append([make_line("system", "older", NOW, kind="overlay", first_kept=2)])
        await talk(session, "c")
        old = session.session_id
        await roll(session, 2)

        assert sent(session) == ["b", "re: b", "c", "re: c"]
        assert len(session) == 5
    said = ["a", "re: a", "b", "re: b", "older", "c", "re: c"]
    assert texts(map(decode, archived(store, old).messages)) == said


async def test_a_running_turn_moves_over(store: Store) -> None:
    """Its lines follow the summary, and it can be gone on with."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b")
        await session.append([make_line("user", "q", NOW, message_id="run")])
        old = session.session_id
        await roll(session, 4)

        assert texts(session.lines()) == ["S", "q"]
        assert (found := session.find("run")) is not None
        assert (found.start, found.tail, found.final) == (1, True, None)
        assert session.journal.known("run") is None
        assert (session.last_consolidated, "kept" in session.line(0)) == (0, False)
        assert session.metadata["previous_session"] == old
    assert texts(map(decode, archived(store, old).messages)) == ["a", "re: a", "b", "re: b"]


@guarantee(
    "sessions",
    "A session that a compaction ends is archived completely and continues in the next one, across kills.",
)
async def test_dying_anywhere_leaves_one_of_two_states(store: Store, tmp_path: Path) -> None:
    """Before or after, never between; a second try gets to its end."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c")
        await session.append([make_line("user", "q", NOW, message_id="run")])
        old = session.session_id
    ended = set[bool]()
    async for left in survivors("store_victim", tmp_path / "w", "roll", "4"):
        rows = {row.id: (row.active, row.message_count) for row in await left.rows()}
        assert len(rows) == len(await left.rows())
        async with left.open(ADA) as session:
            ended.add(rows[old] != (True, 7))
            if rows[old] == (True, 7):
                assert rows == {old: (True, 7)}
                assert await roll(session, 4) == old
            else:
                assert rows == {old: (False, 6), session.session_id: (True, 3)}
            assert texts(session.lines()) == ["S", "c", "re: c", "q"]
            assert [told.id for told in session.told()] == ["a", "b", "c"]
            await session.append([make_line("assistant", "re: q", NOW, message_id="run", final=True)])
            assert session.seq_of("run") == 4
        [path] = left.layout.archive("telegram_1").iterdir()
        assert json.loads(path.read_bytes().split(b"\n")[0])["metadata"]["session_id"] == old
    assert ended == {True, False}


async def test_a_turn_that_runs_behind_an_overlay_is_known_for_one(store: Store) -> None:
    """A record at the end hides no turn: ``/new`` leaves it its lines, and takes the summary along."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b")
        await session.append([make_line("user", "q", NOW, message_id="run")])
        await session.append([make_line("system", "S", NOW, kind="overlay", first_kept=2)])
        old = session.session_id
        await session.end()

        assert texts(session.lines()) == ["q"]
        assert (found := session.find("run")) is not None
        assert found.tail
    ended = archived(store, old)
    assert texts(map(decode, ended.messages)) == ["a", "re: a", "b", "re: b", "S"]


async def test_a_big_session_is_parted_without_reading_it_whole(store: Store) -> None:
    """Its archive holds its lines byte for byte, and the next session the newest."""
    lines = [
        encode(make_line("user" if n % 2 == 0 else "assistant", f"{n} {'x' * 900}", NOW))
        for n in range(9_000)
    ]
    path = store.layout.transcript("telegram_1")
    path.parent.mkdir(parents=True)
    head = {
        "_type": "metadata",
        "key": ADA,
        "created_at": "2026-03-01T10:00:00.000001",
        "last_consolidated": 8_000,
    }
    path.write_bytes(b"\n".join([json.dumps(head).encode(), *lines, b""]))
    async with store.open(ADA) as session:
        # With this the file gets a line 1 of ours.
        await talk(session, "a")
    reopened = Store(store.layout.sessions.parent, zone=UTC)
    async with reopened.open(ADA) as session:
        assert isinstance(session.transcript.messages, Lines)
        old = session.session_id
        assert await roll(session, 8_998) == old
        assert [text[:5] for text in texts(session.lines())] == ["S", "8998 ", "8999 ", "a", "re: a"]
    await reopened.aclose()
    ended = archived(store, old)
    assert list(ended.messages)[:9_000] == lines
    assert len(ended.messages) == 9_002
    assert ended.last_consolidated == 8_000


async def test_a_consolidation_that_ends_behind_it_counts(store: Store) -> None:
    """What memory took in while the session was parted is not owed again by the archive."""
    async with store.open(ADA) as session:
        await talk(session, "a", "b", "c", "d")
        stretches = UnconsolidatedReader(store)
        stretch = await stretches.load(ADA)
        assert stretch is not None
        old = session.session_id
        await roll(session, 4)
        await stretches.move_pointer(ADA, stretch.mark(6))

        assert session.last_consolidated == 5
    assert archived(store, old).last_consolidated == 6


async def test_what_is_kept_is_found_and_paid_once(store: Store) -> None:
    """Over both sessions, whichever of them is the active one."""
    usage = {"prompt": 10, "completion": 2, "cost_usd": 0.5}
    async with store.open(ADA) as session:
        for id_ in ("a", "b"):
            await session.append(
                [
                    make_line("user", f"word {id_}", NOW, message_id=id_),
                    make_line("assistant", f"word {id_}", NOW, message_id=id_, final=True, usage=usage),
                ]
            )
        old = session.session_id
        await roll(session, 2)
        await talk(session, "c")
        rows = {row.id: row for row in await store.rows()}
        found = search(store.layout, "telegram_1", ADA, "word", limit=10)
        await session.change(lambda *writers: rollover.reopen(*writers, session_id=old))
        again = search(store.layout, "telegram_1", ADA, "word", limit=10)

    assert [hit.text for hit in found.hits] == ["word b", "word b", "word a", "word a"]
    assert [hit.active for hit in found.hits] == [True, True, False, False]
    assert [(hit.text, hit.id) for hit in again.hits] == [(f"word {id_}", old) for id_ in "bbaa"]
    assert sum(row.totals.usage.prompt for row in rows.values()) == 20
    assert sum(row.totals.turns for row in rows.values()) == 3
    assert rows[old].totals.turns == 2


@pytest.mark.parametrize("padding", [1, 60_000])
async def test_copies_are_paid_once_in_a_big_session_too(store: Store, padding: int) -> None:
    """However it is read: whole or in parts."""
    usage = {"prompt": 10, "completion": 2, "cost_usd": 0.5}
    path = store.layout.transcript("telegram_1")
    path.parent.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"role": "system", "content": "S", "kind": "compact", "kept": 2}]
    for number in range(100):
        lines.append(make_line("user", "x" * padding, NOW, message_id=str(number)))
        lines.append(make_line("assistant", "y", NOW, message_id=str(number), final=True, usage=usage))
    head = {"_type": "metadata", "key": ADA, "metadata": {}, "last_consolidated": 0}
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in (head, *lines)))

    [row] = await store.rows()

    assert (row.totals.turns, row.totals.usage.prompt) == (99, 990)
    assert row.message_count == 200
