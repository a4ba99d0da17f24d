"""A conversation that moves to another key keeps its lines, notes and files, wherever the move dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from session.background.moving import move
from session.errors import Fenced, StoreError
from session.memory.notes import Notes
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.session.dying import victims
from tests.session.store_place import worker_of
from tests.session.store_victim import NEW, OLD
from tests.support.guarantee import guarantee

AT = datetime.now(UTC).isoformat(timespec="microseconds")
OLD_STEM, NEW_STEM = "telegram_-5", "telegram_-1005"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(tmp_path, zone=UTC)
    yield opened
    await opened.aclose()


def exchange(id: str, text: str) -> list[dict[str, Any]]:
    return [
        make_line("user", text, AT, message_id=id, platform_id=id),
        make_line("assistant", f"re: {text}", AT, message_id=id, final=True),
    ]


async def talk(store: Store, key: SessionKey, *ids: str) -> None:
    async with store.open(key) as session:
        for name in ids:
            await session.append(exchange(name, name))


async def texts(store: Store, key: SessionKey) -> list[str]:
    return [line["content"] for line in (await store.look(key)).lines()]


def said(*ids: str) -> list[str]:
    return [text for name in ids for text in (name, f"re: {name}")]


async def test_the_conversation_goes_on_under_the_new_key(store: Store) -> None:
    await talk(store, OLD, "a", "b")
    async with store.open(OLD) as session:
        await session.checkpoint(metadata={"name": "Trip", "instructions": "be brief"}, last_consolidated=2)
        session_id, created = session.session_id, session.created_at

    assert await move(store, OLD, NEW) == (OLD_STEM, NEW_STEM)

    view = await store.look(NEW)
    assert await texts(store, NEW) == said("a", "b")
    assert (view.session_id, view.created_at, view.last_consolidated) == (session_id, created, 2)
    assert (view.metadata["name"], view.metadata["instructions"]) == ("Trip", "be brief")
    assert view.transcript.key == NEW
    assert not view.transcript.needs_checkpoint
    assert not store.layout.transcript(OLD_STEM).exists()
    assert [row.key for row in await store.rows()] == [NEW]
    await talk(store, NEW, "c")
    assert await texts(store, NEW) == said("a", "b", "c")


async def test_messages_that_overtook_come_behind_the_old_ones(store: Store) -> None:
    await talk(store, OLD, "a", "b")
    await talk(store, NEW, "x", "y")
    async with store.open(NEW) as session:
        await session.append(
            [
                make_line("system", "", AT, kind="undo", **{"from": 2}),
                make_line("system", "so far", AT, kind="overlay", first_kept=4, tokens_before=9),
                make_line("system", "X", AT, kind="note", edits="x", message_id="e"),
            ]
        )

    await move(store, OLD, NEW)

    view = await store.look(NEW)
    assert (await texts(store, NEW))[:8] == said("a", "b", "x", "y")
    undo, overlay, note = view.lines(8)
    assert (undo["from"], overlay["first_kept"], note["edits"]) == (6, 8, "x")
    assert view.find("a") is not None
    assert view.find("x") is not None
    assert view.last_consolidated == 0


@pytest.mark.parametrize(("old", "new", "offset"), [(2, 2, 2), (4, 2, 6), (4, 0, 4), (0, 4, 0)])
async def test_what_memory_holds_is_still_told_apart(store: Store, old: int, new: int, offset: int) -> None:
    await talk(store, OLD, "a", "b")
    await talk(store, NEW, "x", "y")
    for key, count in ((OLD, old), (NEW, new)):
        async with store.open(key) as session:
            await session.checkpoint(last_consolidated=count)

    await move(store, OLD, NEW)

    assert (await store.look(NEW)).last_consolidated == offset


async def test_a_key_without_anything_moves_to_nothing(store: Store) -> None:
    await talk(store, NEW, "x")

    await move(store, OLD, NEW)
    await move(store, OLD, NEW)

    assert await texts(store, NEW) == said("x")


async def test_a_session_that_was_ended_after_the_merge_is_not_merged_again(
    store: Store, tmp_path: Path
) -> None:
    """It died after the merge; before the second try the new key began a new session."""
    await talk(store, OLD, "a")
    kept = store.layout.transcript(OLD_STEM).read_bytes()
    await move(store, OLD, NEW)
    async with store.open(NEW) as session:
        await session.end()
    store.layout.transcript(OLD_STEM).write_bytes(kept)

    await move(store, OLD, NEW)

    assert await texts(store, NEW) == []
    assert not store.layout.transcript(OLD_STEM).exists()


@pytest.mark.parametrize("same", [True, False], ids=["of this process", "of another"])
async def test_a_turn_of_the_new_key_that_runs_is_fenced_and_goes_on_behind(
    store: Store, tmp_path: Path, same: bool
) -> None:
    other = store if same else worker_of(store, tmp_path)
    await talk(store, OLD, "a")
    async with other.open(NEW) as session:
        await session.append(exchange("x", "x")[:1])
        await move(store, OLD, NEW)
        with pytest.raises(Fenced):
            await session.append(exchange("x", "x")[1:])

    async with other.open(NEW) as again:
        found = again.find("x")
        assert found is not None
        assert (found.start, found.final, found.tail) == (2, None, True)
        await again.append(exchange("x", "x")[1:])
    await other.aclose()
    assert await texts(store, NEW) == said("a", "x")


async def test_a_damaged_file_is_kept_beside_it(store: Store, tmp_path: Path) -> None:
    await talk(store, OLD, "a")
    path = store.layout.transcript(OLD_STEM)
    path.write_bytes(path.read_bytes() + b'{"role": "us\n{"role":"user","content":"b"}\n{"role":')

    await move(store, OLD, NEW)

    assert await texts(store, NEW) == [*said("a"), "b"]
    assert len(list(path.parent.glob(f"{OLD_STEM}.jsonl.corrupt-*"))) == 1


async def test_a_foreign_file_keeps_the_id_that_it_was_listed_by(store: Store) -> None:
    path = store.layout.transcript(OLD_STEM)
    path.parent.mkdir(parents=True)
    head = {"_type": "metadata", "key": OLD, "created_at": "2026-01-01T00:00:00", "metadata": {"x": 1}}
    path.write_bytes(orjson.dumps(head) + b'\n{"role":"user","content":"a"}\n')
    (before,) = await store.rows()

    await move(store, OLD, NEW)

    (after,) = await store.rows()
    assert (after.id, after.key) == (before.id, NEW)
    assert (await store.look(NEW)).metadata["x"] == 1


async def test_what_the_disk_refuses_is_told_and_done_at_the_next_try(store: Store, tmp_path: Path) -> None:
    await talk(store, OLD, "a")
    chats = tmp_path / "files" / "chats"
    (chats / OLD_STEM).mkdir(parents=True)
    (chats / OLD_STEM / "y").write_text("y")
    (chats / NEW_STEM).write_text("in the way")

    with pytest.raises(StoreError):
        await move(store, OLD, NEW)
    (chats / NEW_STEM).unlink()
    await move(store, OLD, NEW)

    assert await texts(store, NEW) == said("a")
    assert (chats / NEW_STEM / "y").read_text() == "y"


@guarantee("sessions", "A group whose id changes keeps its conversation, wherever the move is killed.")
async def test_wherever_it_dies_a_second_try_ends_in_the_same(store: Store, tmp_path: Path) -> None:
    """Kill -9 before each change of the disk; then new messages come, then it is tried again."""
    place = tmp_path / "w"
    made = Store(place, zone=UTC)
    await talk(made, OLD, "e")
    async with made.open(OLD) as session:
        await session.end()
    await talk(made, OLD, "a", "b")
    await talk(made, NEW, "x")
    for stem, word in ((OLD_STEM, "old"), (NEW_STEM, "new")):
        for name in ("memory", "files"):
            (place / name / "chats" / stem).mkdir(parents=True)
            (place / name / "chats" / stem / "HISTORY.md").write_text(word)
            (place / name / "chats" / stem / "sub").mkdir()
            (place / name / "chats" / stem / "sub" / "x.txt").write_text(word)
    (place / "files" / "chats" / OLD_STEM / "only.txt").write_text("only")
    await made.aclose()

    count = victims("store_victim", place, "move")

    assert count > 20
    for number in range(1, count + 1):
        copy = tmp_path / f"w-{number}"
        again = Store(copy, zone=UTC)
        await talk(again, NEW, "y")
        await move(again, OLD, NEW)
        at = f"died at change {number}"
        lines = await texts(again, NEW)
        assert lines == said("a", "b", "x", "y"), at
        assert {row.key for row in await again.rows()} == {NEW}, at
        assert len(await again.rows()) == 2, at
        assert await again.verify() == [], at
        known = (await again.look(OLD)).journal.known("a")
        assert known is not None, at
        assert known.text == "re: a", at
        assert (copy / "memory" / "chats" / NEW_STEM / "HISTORY.md").read_text() == "old\nnew", at
        assert (copy / "files" / "chats" / NEW_STEM / "HISTORY.md").read_text() == "new", at
        assert (copy / "files" / "chats" / NEW_STEM / "HISTORY~1.md").read_text() == "old", at
        assert (copy / "files" / "chats" / NEW_STEM / "only.txt").read_text() == "only", at
        deep = copy / "files" / "chats" / NEW_STEM / "sub"
        assert [path.read_text() for path in (deep / "x.txt", deep / "x~1.txt")] == ["new", "old"], at
        left = [str(p.relative_to(copy)) for p in copy.rglob("*") if OLD_STEM in p.name]
        assert left == [f"state/keys/{OLD_STEM}.lock"], at
        assert not list(copy.rglob("*.tmp")), at
        await again.aclose()


async def test_what_memory_said_before_goes_along(store: Store) -> None:
    """The versions of both stand side by side, and nothing looks as if somebody had edited it."""
    await talk(store, OLD, "a")
    await talk(store, NEW, "b")
    memory = store.layout.workspace / "memory/chats"
    for stem, first, second in ((OLD_STEM, "one\n", "two\n"), (NEW_STEM, "three\n", "four\n")):
        for text in (first, second):
            Notes(memory / stem).write_memory(text)

    await move(store, OLD, NEW)
    notes = Notes(memory / NEW_STEM)
    notes.write_memory("five\n")

    kept = [(one.cause, one.read()) for one in notes.versions.all()]
    assert kept == [("consolidation", text) for text in (b"one\n", b"three\n", b"two\nfour\n")]
