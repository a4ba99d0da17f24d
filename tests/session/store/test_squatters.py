"""No key takes the file name of another, nor denies it one."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from session.store.store import Store
from session.transcript.key import SessionKey, marked_stem
from session.transcript.line import make_line

AT = "2026-01-31T09:00:00+00:00"
VICTIM = SessionKey("web:v/w")


async def say(store: Store, key: str) -> str:
    """Write a line; return the name of the file."""
    async with store.open(SessionKey(key)) as session:
        await session.append([make_line("user", key, AT)])
        return session.path.name


async def test_two_keys_that_squat_on_a_third_leave_it_a_file(tmp_path: Path) -> None:
    store = Store(tmp_path, zone=UTC)
    squatter = f"web:{marked_stem(VICTIM).removeprefix('web_')}"
    assert squatter == "web:v_w~95da44c4"
    keys = ("web:v_w", squatter, VICTIM)

    names = [await say(store, key) for key in keys]

    assert len(set(names)) == 3
    assert names[2] == "web_v_w~95da44c4.jsonl"
    await store.aclose()
    store = Store(tmp_path, zone=UTC)
    assert [await say(store, key) for key in keys] == names
    for key in keys:
        lines = (await store.look(SessionKey(key))).lines()
        assert [line["content"] for line in lines] == [key, key]
    await store.aclose()


async def test_a_file_that_such_a_key_had_before_stays_its_own(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    old = tmp_path / "sessions" / "web_x~deadbeef.jsonl"
    old.write_text(
        '{"_type": "metadata", "key": "web:x~deadbeef", "created_at": "2026-01-01T00:00:00",'
        ' "updated_at": "2026-01-01T00:00:00", "metadata": {}, "last_consolidated": 0}\n'
    )
    store = Store(tmp_path, zone=UTC)

    assert await say(store, "web:x~deadbeef") == old.name
    await store.aclose()
