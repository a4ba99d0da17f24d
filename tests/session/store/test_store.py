"""Opening, writing and caching conversations."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from session.errors import LineTooLong, StoreError
from session.transcript.key import SessionKey
from session.transcript.transcript import MAX_LINE_BYTES, make_line
from tests.session.store_place import ADA, AT, Make, path_of, turn


async def test_nothing_is_written_by_looking(make: Make, tmp_path: Path) -> None:
    """A look leaves no file, lock or folder behind."""
    view = await make().look(ADA)

    assert len(view) == 0
    assert await make().rows() == []
    assert list(tmp_path.iterdir()) == []


async def test_files_are_private_whatever_the_umask(make: Make, tmp_path: Path) -> None:
    """Folders are 0700 and files 0600."""
    old = os.umask(0)
    try:
        async with make(workspace=tmp_path / "w").open(ADA) as session:
            await session.append(turn("a"))
            await session.journal.conclude("c", "command")
            await session.checkpoint(metadata={"name": "x"})
            await session.end()
    finally:
        os.umask(old)

    for path in (tmp_path / "w").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


async def test_torn_last_line(make: Make, tmp_path: Path) -> None:
    """A crash in mid-write costs the unfinished line and no other."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
    with path_of(tmp_path).open("ab") as file:
        file.write(b'{"role": "us')

    async with make().open(ADA) as session:
        assert await session.append(turn("b")) == 2

    assert len(path_of(tmp_path).read_bytes().split(b"\n")) == 1 + 4 + 1
    assert not list(path_of(tmp_path).parent.glob("*corrupt*"))


async def test_line_too_long_writes_nothing(make: Make, tmp_path: Path) -> None:
    """A line over the limit is refused with the file as it was."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
        before = path_of(tmp_path).read_bytes()

        with pytest.raises(LineTooLong):
            await session.append([*turn("b"), make_line("user", "x" * MAX_LINE_BYTES, AT)])

        assert path_of(tmp_path).read_bytes() == before
        assert await session.append(turn("b")) == 2


async def test_edit_by_hand_is_seen(make: Make, tmp_path: Path) -> None:
    """A file changed behind our back is read again, before a turn and before a write."""
    async with make().open(ADA) as session:
        await session.append(turn("a"))
        text = path_of(tmp_path).read_text()
        path_of(tmp_path).write_text(text.replace("q a", "q edited by hand"))

        assert await session.append(turn("b")) == 2

        assert session.line(0)["content"] == "q edited by hand"
        path_of(tmp_path).write_text(path_of(tmp_path).read_text().replace("yes", "no", 1))
    store = make()
    for expected in ("no", "nay"):
        async with store.open(ADA) as session:
            assert session.line(1)["content"] == expected
        path_of(tmp_path).write_text(path_of(tmp_path).read_text().replace("no", "nay", 1))


async def test_file_deleted_by_hand_begins_anew(make: Make, tmp_path: Path) -> None:
    """A transcript that somebody deleted is an empty session, in mid-turn too."""
    store = make()
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        path_of(tmp_path).unlink()
        assert await session.append(turn("b")) == 0
        path_of(tmp_path).unlink()

    async with store.open(ADA) as session:
        assert len(session) == 0


async def test_checkpoint_keeps_lines_and_foreign_fields(make: Make, tmp_path: Path) -> None:
    """Line 1 is renewed; message bytes, unknown fields and other metadata stay."""
    path = path_of(tmp_path)
    path.parent.mkdir()
    head = (
        '{"_type":"metadata","key":"telegram:1","created_at":"2026-02-25T08:42:53.023127",'
        '"updated_at":"2026-02-25T08:42:53.023127","metadata":{"theirs":1,"gone":2},"last_consolidated":0,"x":[1]}'
    )
    body = '{"role":"user",  "content":"odd  spaces","_extra":{"k":1.50}}'
    path.write_text(f"{head}\n{body}\n")

    async with make().open(ADA) as session:
        await session.checkpoint(metadata={"name": "n", "gone": None}, last_consolidated=1)
        assert session.metadata["name"] == "n"
        assert session.last_consolidated == 1

    first, second = path.read_text().splitlines()
    line = json.loads(first)
    assert second == body
    assert line["created_at"] == "2026-02-25T08:42:53.023127"
    assert line["updated_at"] > line["created_at"]
    assert line["x"] == [1]
    assert {k: line["metadata"][k] for k in line["metadata"] if k != "session_id"} == {
        "theirs": 1,
        "name": "n",
    }


async def test_background_checkpoint_spares_the_turn(make: Make) -> None:
    """Turn and background job of a key write at once; neither invalidates the other."""
    store = make()
    async with store.open(ADA) as running, store.open(ADA) as background:
        await running.append(turn("a"))

        async def work() -> None:
            for number in range(10):
                await background.checkpoint(last_consolidated=1, metadata={"n": number})

        async def talk() -> None:
            for number in range(10):
                await running.append(turn(str(number)))

        await asyncio.gather(work(), talk())

    async with make().open(ADA) as session:
        assert len(session) == 22
        assert session.metadata["n"] == 9


async def test_cache_is_bounded_in_bytes(make: Make) -> None:
    """Conversations nobody uses leave memory when all together weigh too much, used ones never."""
    store = make(cache_bytes=400_000)
    async with store.open(ADA) as held:
        await held.append([make_line("user", "x" * 300_000, AT)])
        for number in range(20):
            async with store.open(SessionKey(f"cli:{number}")) as session:
                await session.append([make_line("user", "y" * 50_000, AT)])
            assert store.cached_bytes() <= 400_000 + 310_000
        assert held.line(0)["content"] == "x" * 300_000
        async with store.open(ADA) as second:
            assert second.transcript is held.transcript
        assert await held.append(turn("a")) == 1
    async with store.open(SessionKey("cli:0")) as session:
        assert len(session) == 1
    assert store.cached_bytes() <= 400_000


async def test_clear_leaves_nothing_but_the_ids(make: Make, tmp_path: Path) -> None:
    """Clearing deletes the transcript without an archive; running turns end unwritten, ids stay known."""
    store = make(clock=lambda: datetime(2026, 3, 1, 11, tzinfo=UTC))
    async with store.open(ADA) as session:
        await session.append(turn("a"))
        await session.journal.conclude("c", "command", text="x")
        seq = session.seq

        assert await store.clear(ADA, ids=["running"])

        with pytest.raises(StoreError):
            await session.append(turn("running"))
    assert not path_of(tmp_path).exists()
    assert not list(tmp_path.rglob("*archive*"))
    async with store.open(ADA) as session:
        assert len(session) == 0
        for id_ in ("a", "running"):
            assert (known := session.journal.known(id_)) is not None
            assert known.kind == "cleared"
        await session.append(turn("b"))
        assert session.seq_of("b") == seq + 1
    assert await store.clear(SessionKey("cli:never")) is False
