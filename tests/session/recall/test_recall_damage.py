"""Whatever was done to an index, or to what it was made of, searches find what is there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from session.errors import StoreError
from session.recall.index import VERSION
from tests.session.recall.place import ADA, place
from tests.support.guarantee import guarantee

DAMAGES = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "overwritten": lambda path: path.write_bytes(
        path.read_bytes()[:2048] + b"\x5a" * (path.stat().st_size - 2048)
    ),
    "no database": lambda path: path.write_bytes(b"what is this " * 1000),
}


@guarantee("storage", "A search that meets a damaged index builds it again.")
@pytest.mark.parametrize("damage", [*DAMAGES, "future", "past", "foreign"])
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str, is_open: bool) -> None:
    """By the search that meets it, in this process or the next one."""
    async with place(tmp_path) as here:
        await here.say(ADA, *(f"{word} {number}" for number in range(40) for word in ("apples", "pears")))
        assert len(await here.find(ADA, "apples", limit=100)) == 40
        path = here.index()
        if is_open:
            spoil(path, damage)
            assert len(await here.find(ADA, "apples", limit=100)) == 40
    if not is_open:
        spoil(path, damage)

    async with place(tmp_path) as here:
        found = await here.search(ADA, "apples", limit=100)

        assert (len(found.hits), found.all) == (40, True)
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
    file.close()


def spoil(path: Path, damage: str) -> None:
    if damage in DAMAGES:
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        DAMAGES[damage](path)
        return
    if damage == "foreign":
        path.unlink()
    with sqlite3.connect(path) as file:
        if damage == "foreign":
            file.execute("CREATE TABLE sources (what TEXT)")
        else:
            file.execute(f"PRAGMA user_version={99 if damage == 'future' else -1}")
    file.close()


async def test_an_index_that_cannot_be_made_is_said_and_not_raised_by_turns(tmp_path: Path) -> None:
    """A folder in its place: a search says so; nothing else notices."""
    async with place(tmp_path) as here:
        await here.say(ADA, "apples", "yes")
        here.index().mkdir(parents=True)

        with pytest.raises(StoreError, match="is not available"):
            await here.find(ADA, "apples")
        await here.say(ADA, "pears", "yes")


async def test_two_processes_keep_one_index(tmp_path: Path) -> None:
    """Each finds what was said through the other, once."""
    async with place(tmp_path) as one, place(tmp_path) as two:
        await one.say(ADA, "apples", "yes")
        assert await one.texts(ADA, "apples") == await two.texts(ADA, "apples") == ["apples"]
        await two.say(ADA, "more apples", "yes")

        for here in (one, two):
            assert sorted(await here.texts(ADA, "apples")) == ["apples", "more apples"]


async def test_what_was_edited_by_hand_is_found_as_it_stands(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.say(ADA, "swordfish", "yes", "apples", "no")
        assert await here.texts(ADA, "swordfish") == ["swordfish"]
        path = tmp_path / "sessions/telegram_1.jsonl"
        path.write_bytes(path.read_bytes().replace(b"swordfish", b"pineapple"))

        assert await here.texts(ADA, "swordfish") == []
        assert await here.texts(ADA, "pineapple") == ["pineapple"]


@pytest.mark.parametrize("damage", ["bom", "garbage", "torn", "no head"])
async def test_a_damaged_transcript_is_searched_as_far_as_it_can_be_read(tmp_path: Path, damage: str) -> None:
    async with place(tmp_path) as here:
        await here.say(ADA, "apples", "yes", "pears", "no")
        path = tmp_path / "sessions/telegram_1.jsonl"
        data = path.read_bytes()
        head, rest = data.split(b"\n", 1)
        path.write_bytes(
            {
                "bom": b"\xef\xbb\xbf" + data,
                "garbage": head + b"\n{{{\n" + rest,
                "torn": data + b'{"role": "us',
                "no head": rest,
            }[damage]
        )

    async with place(tmp_path) as here:
        assert await here.texts(ADA, "apples") == ["apples"]
        assert await here.texts(ADA, "pears") == ["pears"]


async def test_a_renewed_line_1_costs_no_new_reading_and_loses_nothing(tmp_path: Path) -> None:
    """A checkpoint moves every line: they are found where they stand now."""
    async with place(tmp_path) as here:
        await here.say(ADA, "apples", "yes")
        assert await here.texts(ADA, "apples") == ["apples"]
        async with here.store.open(ADA) as session:
            await session.checkpoint(metadata={"instructions": "be brief " * 50})
        await here.say(ADA, "pears", "yes")

        assert await here.texts(ADA, "apples") == ["apples"]
        assert await here.texts(ADA, "pears") == ["pears"]
        with sqlite3.connect(here.index()) as file:
            assert file.execute("SELECT count(*), max(id) FROM sources").fetchone() == (1, 1)
        file.close()
