"""Each key has a file of its own, under a name that every system takes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from session.errors import Fenced, StoreError
from session.store.store import Store
from session.transcript.key import SessionKey, marked_stem
from session.transcript.line import make_line
from tests.session.store_place import AT, Make, path_of, turn

VICTIM = SessionKey("web:v/w")


@pytest.mark.parametrize(
    ("one", "two"), [("a:b:c", "a:b_c"), ("x:1?", "x:1*"), ("x:a/b", "x:a\\b"), ("x: a", "x: a ")]
)
async def test_two_keys_never_share_a_file(make: Make, one: str, two: str) -> None:
    """Where the file name rule maps two keys to one name, each keeps its own file, for every process."""
    store = make()

    async def say(key: SessionKey, id_: str) -> str:
        for _ in range(2):
            # Of two that find the name free at once the second has to look again.
            with contextlib.suppress(Fenced):
                async with store.open(key) as session:
                    await session.append(turn(id_))
                    return session.stem
        raise AssertionError("there is no name")

    first, second = await asyncio.gather(say(SessionKey(one), "one"), say(SessionKey(two), "two"))
    assert {first, second} in ({first, marked_stem(two)}, {marked_stem(one), second})
    assert first != second

    other = make()
    for key, id_ in ((one, "one"), (two, "two")):
        async with other.open(SessionKey(key)) as session:
            assert [line["message_id"] for line in session.lines()] == [id_, id_]
            assert await other.stem(SessionKey(key)) == session.stem


async def test_file_taken_over_by_another_key_in_mid_turn(make: Make, tmp_path: Path) -> None:
    """When another program puts its own conversation under our name, we leave it alone and move."""
    store = make()
    key = SessionKey("cli:user_name")
    async with store.open(key) as session:
        await session.append(turn("a"))
        theirs = path_of(tmp_path, "cli_user_name").read_text().replace("cli:user_name", "cli:user:name")
        path_of(tmp_path, "cli_user_name").write_text(theirs)

        with pytest.raises(StoreError):
            await session.append(turn("b"))

    async with store.open(key) as session:
        assert session.stem == marked_stem(key)
        await session.append(turn("b"))
    assert path_of(tmp_path, "cli_user_name").read_text() == theirs


@pytest.mark.parametrize(
    "key",
    [
        "x:" + "k" * 500,
        "x:" + "ü" * 300,
        "x:\0",
        "..",
        ".",
        "",
        "x:../../etc/passwd",
        "x:🦊" * 90,
        "/",
        "x:\ud800",
    ],
)
async def test_every_key_has_a_safe_file(make: Make, tmp_path: Path, key: str) -> None:
    """Any key is kept, in one file directly inside sessions/, and its journal and archive beside."""
    async with make().open(SessionKey(key)) as session:
        await session.append(turn("a"))
        await session.journal.conclude("c", "command", text="x")
        await session.checkpoint(metadata={"n": 1})
        await session.end()
        await session.append(turn("b"))

    async with make().open(SessionKey(key)) as session:
        assert session.path.parent == tmp_path / "sessions"
        assert session.path.exists()
        assert [line["message_id"] for line in session.lines()] == ["b", "b"]
    assert len(await make().rows()) == 2


# -- squatters -------------------------------------------------------------------------------------------


async def say(store: Store, key: str) -> str:
    """Write a line; return the name of the file."""
    async with store.open(SessionKey(key)) as session:
        await session.append([make_line("user", key, AT)])
        return session.path.name


async def test_two_keys_that_squat_on_a_third_leave_it_a_file(make: Make) -> None:
    store = make()
    squatter = f"web:{marked_stem(VICTIM).removeprefix('web_')}"
    assert squatter == "web:v_w~95da44c4"
    keys = ("web:v_w", squatter, VICTIM)

    names = [await say(store, key) for key in keys]

    assert len(set(names)) == 3
    assert names[2] == "web_v_w~95da44c4.jsonl"
    store = make()
    assert [await say(store, key) for key in keys] == names
    for key in keys:
        lines = (await store.look(SessionKey(key))).lines()
        assert [line["content"] for line in lines] == [key, key]


async def test_a_file_that_such_a_key_had_before_stays_its_own(make: Make, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    old = tmp_path / "sessions" / "web_x~deadbeef.jsonl"
    old.write_text(
        '{"_type": "metadata", "key": "web:x~deadbeef", "created_at": "2026-01-01T00:00:00",'
        ' "updated_at": "2026-01-01T00:00:00", "metadata": {}, "last_consolidated": 0}\n'
    )
    store = make()

    assert await say(store, "web:x~deadbeef") == old.name
